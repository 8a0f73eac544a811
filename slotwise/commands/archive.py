"""build, inspect, check, new: archives and the folders they are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.console import Json, emit, table


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(build)
    app.command()(inspect)
    app.command()(check)


def build(
    model: Annotated[str, typer.Argument(help="A model's name, or a folder that holds a model.toml.")],
    weights: Annotated[
        str | None, typer.Option(help="Given to the model's make.py: a path, an id, or none for made-up small ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the archive (default: model_store).")] = None,
    as_json: Json = False,
) -> None:
    """Build a model's archive, MODEL.mar, and its build report."""
    from slotwise import archive

    path = archive.build(model, out, weights)
    emit({"archive": str(path), "sha256": archive.file_sha256(path)}, as_json, lambda: typer.echo(f"built {path}"))


def inspect(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A .mar file.")],
    as_json: Json = False,
) -> None:
    """Show what is in an archive; fail if it is not exactly what was built."""
    from dataclasses import asdict

    from slotwise import archive

    info = archive.inspect(path)
    listing = {entry.name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256} for entry in info.entries}
    data = {**asdict(info), "name": info.name, "version": info.version, "handler": info.handler, "entries": listing}
    rows = [[entry.name, entry.size_bytes, entry.sha256[:16] + "..."] for entry in info.entries]
    packed_by = f"torch-model-archiver {info.manifest.get('archiverVersion')}"

    def render() -> object:
        typer.echo(f"{info.name} {info.version}, handler {info.handler}, packaged by {packed_by}")
        typer.echo(f"{info.size_bytes:,} bytes, sha256 {info.sha256}")
        typer.echo(f"profiles: {', '.join(info.profiles) or 'none'}; every file is what was built")
        return table("", ["file", "bytes", "sha256"], rows)

    emit(data, as_json, render)


def check(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A .mar file.")],
    body: Annotated[
        list[Path] | None, typer.Option(help="A file that the model answers, besides the archive's examples; repeatable.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Requests in a full batch.")] = 8,
    profile: Annotated[str | None, typer.Option(help="Run as under this profile (default: cpu).")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one batch may take.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Ask both servers' real workers, without Java, which promises an archive keeps; fail if one is broken."""
    from dataclasses import asdict

    from slotwise import console
    from slotwise.check.run import SENTENCES, check

    with console.progress() as shown:
        task = shown.add_task("checking", total=2 * len(SENTENCES))

        def advance(kind: str, promise: str) -> None:
            shown.update(task, advance=1, description=f"{kind}: {promise}")

        report = check(path, body, batch_size=batch_size, profile=profile, timeout_s=timeout, progress=advance)

    def render() -> object:
        said = {True: "holds", False: "BROKEN", None: "not tested"}
        kinds = list(report.verdicts)
        rows = []
        for name, sentence in SENTENCES.items():
            found = [next(v for v in report.verdicts[kind] if v.promise == name) for kind in kinds]
            rows.append([sentence, *(said[verdict.holds] for verdict in found)])
        console.out().print(table(str(path), ["promise", *(f"{k} {report.versions[k]}" for k in kinds)], rows))
        for kind in kinds:
            for verdict in report.verdicts[kind]:
                if verdict.why:
                    typer.echo(f"{kind}, {verdict.promise}, {said[verdict.holds]}: {verdict.why}")
        return None

    emit({**asdict(report), "passed": report.passed}, as_json, render)
    if not report.passed:
        raise typer.Exit(1)
