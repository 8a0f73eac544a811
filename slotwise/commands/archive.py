"""build, inspect, guard, check, debug, new: archives and the folders they are made from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotwise.commands.options import ModelFolder, Profile
from slotwise.console import Json, emit, out, progress, say, table

if TYPE_CHECKING:
    from slotwise.check.conformance import CheckReport

Archive = Annotated[str, typer.Argument(metavar="ARCHIVE", help="A .mar file, or a built model's name.", show_default=False)]
VERDICTS = {True: "holds", False: "BROKEN", None: "not tested"}


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (build, inspect, guard, check, debug, new):
        app.command()(command)


def build(
    model: ModelFolder,
    weights: Annotated[
        str | None, typer.Option(help="Given to the model's make.py: a path, an id, or none for made-up small ones.")
    ] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Folder for the archive (default: model_store).")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Serve it in int8 on the CPU; fails where int8 does not answer as fp32 does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build a model's archive, MODEL.mar, and beside it what was measured, MODEL.report.json."""
    from slotwise.archive.build import build as build_archive
    from slotwise.archive.network.int8 import agreement_in
    from slotwise.files import project
    from slotwise.worker.environment.digests import file_sha256

    if out_dir is None:
        project.enter()
    path = build_archive(model, out_dir, weights, int8=int8)
    agreement = agreement_in(path) if int8 else None
    data = {"archive": str(path), "sha256": file_sha256(path)} | ({"int8": agreement.data()} if agreement else {})
    lines = [*([agreement.sentence()] if agreement else []), f"built {path}"]
    emit(data, as_json, lambda: typer.echo("\n".join(lines)))


def inspect(path: Archive, as_json: Json = False) -> None:
    """Show what is in an archive, and what one of another tool lacks; fail if one of ours is not exactly what was built."""
    from dataclasses import asdict

    from slotwise.archive import inspection
    from slotwise.archive.guarding.foreign import lacks
    from slotwise.archive.guarding.guarded import proof_of
    from slotwise.archive.renewal import outdated
    from slotwise.archive.store import archive_of

    info = inspection.inspect(archive_of(path), need_digests=False)
    lines = lacks(info)
    proof = proof_of(info.path)
    listing = {entry.name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256} for entry in info.entries}
    data = {**asdict(info), "name": info.name, "version": info.version, "handler": info.handler, "entries": listing}
    data["separability"] = [verdict.to_json() for verdict in info.separability]

    def render() -> Any:
        version = info.manifest.get("archiverVersion")
        packed_by = f"torch-model-archiver {version}" if version else "another tool"
        typer.echo(f"{info.name} {info.version}, handler {info.handler}, packaged by {packed_by}")
        typer.echo(f"{info.size_bytes:,} bytes, sha256 {info.sha256}")
        if info.release:
            typer.echo(outdated(info) or f"worker of slotwise {info.release}")
        if proof is not None:
            typer.echo(f"guard: {proof.sentence()}")
        for verdict in info.separability:
            typer.echo(f"rows on {verdict.about}: {verdict.sentence()}{verdict.about.tried()}")
        if info.model and not info.separability:
            typer.echo("rows: nobody knows whether mates change an answer: a worker tries it when it starts")
        for line in lines or [f"profiles: {', '.join(info.profiles) or 'none'}; every file is what was built"]:
            typer.echo(line)
        if graph := info.model.get("options", {}).get("onnx"):
            about = ", ".join(f"{key} {inspection.shown(str(graph.get(key)))}" for key in ("batch", "opset", "input"))
            typer.echo(f"onnx graph: {about}")
        rows = [[entry.name, entry.size_bytes, f"{entry.sha256[:16]}..."] for entry in info.entries]
        return table("", ["file", "bytes", "sha256"], rows)

    emit({**data, "foreign": lines, "guard": proof.to_json() if proof else None}, as_json, render)


def guard(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A .mar file.", show_default=False)],
    out_file: Annotated[Path | None, typer.Option("--out", help="The guarded archive (default: NAME-guarded.mar).")] = None,
    name: Annotated[str | None, typer.Option(help="Another name for the model.")] = None,
    audit: Annotated[
        float, typer.Option(min=0, max=1, help="The share of requests that are answered again, alone, and compared.")
    ] = 0.0,
    bad_input: Annotated[
        list[str] | None,
        typer.Option(help="An exception that tells of bad input and so is a 400: NAME or MODULE.NAME; repeatable."),
    ] = None,
    example: Annotated[
        list[Path] | None,
        typer.Option(help="A file that the model answers; with several, prove that no answer depends on its batch-mates."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make anybody's archive batch-safe, its code untouched: a bad request costs nobody but its sender."""
    from slotwise.archive.guarding.guard_proof import Example
    from slotwise.archive.guarding.guarded import guard as guarded
    from slotwise.archive.guarding.guarded import proof_of
    from slotwise.bench.bodies import from_files
    from slotwise.worker.environment.digests import file_sha256

    examples = [
        Example(str(file / body.name if file.is_dir() else file), body.data, body.content_type)
        for file in example or ()
        for body in from_files([file])
    ]
    guarded_path = guarded(path, out_file, name=name, audit=audit, bad_input=bad_input or (), examples=examples)
    proof = proof_of(guarded_path)
    assert proof is not None
    data = {"archive": str(guarded_path), "sha256": file_sha256(guarded_path), "proof": proof.to_json()}
    emit(data, as_json, lambda: typer.echo(f"guarded {path.name}: {guarded_path}\n{proof.sentence()}"))


def check(
    archives: Annotated[
        list[str], typer.Argument(metavar="ARCHIVE...", help="One .mar file or built model's name, or several side by side.")
    ],
    body: Annotated[
        list[Path] | None, typer.Option(help="A file that the model answers, besides the archive's examples; repeatable.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Requests in a full batch.")] = 8,
    profile: Annotated[str | None, typer.Option(help="Run as under this profile (default: cpu).")] = None,
    server: Annotated[str | None, typer.Option(help="Ask only torchserve, only mms, or slotwise.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds that one batch may take.")] = 120.0,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How far numbers of two answers to one request may be apart (default: as measured)."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the verdicts as JUnit's XML, too.")] = None,
    as_json: Json = False,
) -> None:
    """Ask both servers' real workers, without Java, which promises an archive keeps; fail if one is broken.

    Where neither is installed, a worker is asked as our own host starts it.
    Where several are compared, those of other tools may break promises: they made none.
    """
    from dataclasses import asdict

    from slotwise.archive.guarding.foreign import lacks
    from slotwise.archive.inspection import inspect
    from slotwise.archive.store import archive_of, built_before
    from slotwise.check.conformance import SENTENCES, carried_bodies, check, present
    from slotwise.check.junit import write_junit
    from slotwise.check.real_worker import OWN_HOST, SERVERS
    from slotwise.files.disk import check_target

    check_target(junit)
    if server not in (None, OWN_HOST, *SERVERS):
        raise typer.BadParameter(f"{server!r} is not one of {', '.join((*SERVERS, OWN_HOST))}", param_hint="--server")
    servers = [server] if server else present()
    paths = [archive_of(archive) for archive in archives]
    infos = {path: inspect(path, need_digests=False) for path in paths}
    for note in filter(None, (built_before(name, infos[path]) for name, path in zip(archives, paths, strict=True))):
        say(note)
    foreign = {path: lines for path, info in infos.items() if (lines := lacks(info))}
    checked = [path for path in paths if path not in foreign or body or carried_bodies(infos[path])]
    with progress() as bar:
        task = bar.add_task("checking", total=len(checked) * len(servers) * len(SENTENCES))

        def advance(kind: str, promise: str) -> None:
            bar.update(task, advance=1, description=f"{kind}: {promise}")

        limits = {"batch_size": batch_size, "profile": profile, "timeout_s": timeout, "tolerance": tolerance}
        reports = [check(path, body, **limits, servers=servers, progress=advance) for path in checked]  # type: ignore[arg-type]
    passed = all(report.passed for report in reports if len(paths) == 1 or Path(report.archive) not in foreign)
    if junit:
        write_junit(junit, reports, SENTENCES, [str(path) for path in foreign] if len(paths) > 1 else [])

    def render() -> None:
        for path, lines in foreign.items():
            typer.echo("\n".join(f"{path.name}: {line}" for line in lines))
        if reports:
            _render_check(reports, SENTENCES)

    whole = {"archives": [asdict(report) for report in reports]} if len(paths) > 1 or not reports else asdict(reports[0])
    emit({**whole, "passed": passed, "foreign": {str(path): lines for path, lines in foreign.items()}}, as_json, render)
    if not passed:
        raise typer.Exit(1)


def _render_check(reports: list[CheckReport], sentences: dict[str, str]) -> None:
    """A table of promises by archive and server, then one line for everything that does not hold."""
    many = len(reports) > 1
    per_server = [(report, kind) for report in reports for kind in report.versions]
    names = {id(report): f"{Path(report.archive).name}, " if many else "" for report in reports}
    rows = []
    for name, sentence in sentences.items():
        verdicts = [verdict for report, kind in per_server for verdict in report.verdicts[kind] if verdict.promise == name]
        rows.append([name, sentence.rstrip("."), *(VERDICTS[verdict.holds] for verdict in verdicts)])
    columns = [f"{names[id(report)]}{kind} {report.versions[kind]}" for report, kind in per_server]
    out().print(table("", ["promise", "", *columns], rows))
    for report, kind in per_server:
        for verdict in report.verdicts[kind]:
            if not verdict.holds or verdict.why:
                typer.echo(f"{names[id(report)]}{kind}, {verdict.promise}, {VERDICTS[verdict.holds]}: {verdict.why}")


def debug(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's folder or name, or a .mar file.", show_default=False)
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The body of one request.", show_default=False)],
    header: Annotated[list[str] | None, typer.Option(help='One of its headers, "Accept: text/plain"; may be repeated.')] = None,
    profile: Profile = "cpu",
    as_json: Json = False,
) -> None:
    """Run one request hook by hook, without a server, and print what each one made, or the error with its file and line."""
    from slotwise.archive.debugging import debug as debug_request

    pairs = [one.partition(":") for one in header or []]
    if any(not colon for _, colon, _ in pairs):
        raise typer.BadParameter('a header is "Name: value"', param_hint="--header")
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    stages = debug_request(model, file, headers, profile, (lambda told: None) if as_json else _say_stage)
    if as_json:
        emit({"stages": stages}, as_json)
    if stages[-1].get("status") != 200:
        raise typer.Exit(1)


def _say_stage(told: dict[str, Any]) -> None:
    first, *more = told["made"] if "made" in told else [f"RAISED {told['error']}", *filter(None, [told["code"]])]
    if told.get("because"):
        more += [f"because of {one}" for one in told["because"]]
    took = f"  ({told['ms']:.2f} ms)" if "ms" in told else ""
    typer.echo("\n".join([f"{told['stage']:<10}{first}{took}", *(f"{'':<10}{line}" for line in more)]))


def new(
    name: Annotated[str, typer.Argument(help="The model's name, or the path of its folder.")],
    form: Annotated[
        Literal["torch", "onnx"] | None, typer.Option(help="The form of its weights (default: torch where it is installed).")
    ] = None,
    kind: Annotated[
        Literal["picture", "text", "tabular", "sklearn", "onnx", "pipeline", "stream"],
        typer.Option(help="What it answers; onnx: named tensors, stream: piece by piece."),
    ] = "picture",
    streams: Annotated[bool, typer.Option("--streams", hidden=True, help="The same as --kind stream.")] = False,
    as_json: Json = False,
) -> None:
    """Write a model's folder to start from: it builds and serves as it is."""
    from slotwise.archive.scaffold import new as scaffold

    kind = "stream" if streams else kind
    if kind != "picture" and form:
        raise typer.BadParameter("only a model of pictures comes in two forms", param_hint="--form")
    files = scaffold.new(name, form, kind)

    def render() -> None:
        for file in files:
            typer.echo(f"wrote {file}")
        typer.echo(f"next: slotwise build {shlex.quote(name)} && slotwise check model_store/{Path(name).name}.mar")

    emit({"folder": name, "files": [str(file) for file in files]}, as_json, render)
