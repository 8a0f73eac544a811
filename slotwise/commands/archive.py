"""build, inspect, check, new: archives and the folders they are made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.console import Json, emit, out, progress, table

if TYPE_CHECKING:
    from slotwise.check.conformance import CheckReport

Archive = Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A .mar file.", show_default=False)]
VERDICTS = {True: "holds", False: "BROKEN", None: "not tested"}


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (build, inspect, check, new):
        app.command()(command)


def build(
    model: Annotated[str, typer.Argument(help="A model's name, or a folder that holds a model.toml.")],
    weights: Annotated[
        str | None, typer.Option(help="Given to the model's make.py: a path, an id, or none for made-up small ones.")
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Folder for the archive (default: model_store).")] = None,
    as_json: Json = False,
) -> None:
    """Build a model's archive, MODEL.mar, and beside it what was measured, MODEL.report.json."""
    from slotwise.archive import build as building

    path = building.build(model, out_dir, weights)
    emit({"archive": str(path), "sha256": building.file_sha256(path)}, as_json, lambda: typer.echo(f"built {path}"))


def inspect(path: Archive, as_json: Json = False) -> None:
    """Show what is in an archive; fail if it is not exactly what was built."""
    from dataclasses import asdict

    from slotwise.archive import build as building

    info = building.inspect(path)
    listing = {entry.name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256} for entry in info.entries}
    data = {**asdict(info), "name": info.name, "version": info.version, "handler": info.handler, "entries": listing}

    def render() -> Any:
        from rich.markup import escape

        packed_by = f"torch-model-archiver {info.manifest.get('archiverVersion')}"
        typer.echo(f"{info.name} {info.version}, handler {info.handler}, packaged by {packed_by}")
        typer.echo(f"{info.size_bytes:,} bytes, sha256 {info.sha256}")
        typer.echo(f"profiles: {', '.join(info.profiles) or 'none'}; every file is what was built")
        if graph := info.model.get("options", {}).get("onnx"):
            typer.echo(f"onnx graph: batch {graph['batch']}, opset {graph['opset']}, input {graph['input']}")
        rows = [[escape(entry.name), entry.size_bytes, f"{entry.sha256[:16]}..."] for entry in info.entries]
        return table("", ["file", "bytes", "sha256"], rows)

    emit(data, as_json, render)


def check(
    path: Archive,
    body: Annotated[
        list[Path] | None, typer.Option(help="A file that the model answers, besides the archive's examples; repeatable.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Requests in a full batch.")] = 8,
    profile: Annotated[str | None, typer.Option(help="Run as under this profile (default: cpu).")] = None,
    server: Annotated[str | None, typer.Option(help="Ask only torchserve, or only mms.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one batch may take.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Ask both servers' real workers, without Java, which promises an archive keeps; fail if one is broken."""
    from dataclasses import asdict

    from slotwise.check.conformance import SENTENCES, check
    from slotwise.check.real_worker import SERVERS

    if server not in (None, *SERVERS):
        raise typer.BadParameter(f"{server!r} is not one of {', '.join(SERVERS)}", param_hint="--server")
    servers = [server] if server else list(SERVERS)
    with progress() as bar:
        task = bar.add_task("checking", total=len(servers) * len(SENTENCES))

        def advance(kind: str, promise: str) -> None:
            bar.update(task, advance=1, description=f"{kind}: {promise}")

        report = check(path, body, batch_size=batch_size, profile=profile, timeout_s=timeout, servers=servers, progress=advance)
    emit({**asdict(report), "passed": report.passed}, as_json, lambda: _render_check(report, SENTENCES))
    if not report.passed:
        raise typer.Exit(1)


def _render_check(report: CheckReport, sentences: dict[str, str]) -> None:
    """A table of promises by server, then one line for everything that does not hold."""
    rows = []
    for name, sentence in sentences.items():
        by_server = [verdict for verdicts in report.verdicts.values() for verdict in verdicts if verdict.promise == name]
        rows.append([name, sentence.rstrip("."), *(VERDICTS[verdict.holds] for verdict in by_server)])
    out().print(table("", ["promise", "", *(f"{kind} {version}" for kind, version in report.versions.items())], rows))
    for kind, verdicts in report.verdicts.items():
        for verdict in verdicts:
            if not verdict.holds:
                typer.echo(f"{kind}, {verdict.promise}, {VERDICTS[verdict.holds]}: {verdict.why}")


def new(
    name: Annotated[str, typer.Argument(help="The model's name, or the path of its folder.")],
    as_json: Json = False,
) -> None:
    """Write a model's folder to start from: it builds and serves as it is."""
    from slotwise.archive import scaffold

    files = scaffold.new(name)

    def render() -> None:
        for file in files:
            typer.echo(f"wrote {file}")
        typer.echo(f"next: slotwise build {name} && slotwise check model_store/{Path(name).name}.mar")

    emit({"folder": name, "files": [str(file) for file in files]}, as_json, render)
