"""fetch, renew, export, migrate: fill a model store, renew its archives, write models for and from other servers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.commands.options import Profile, Set, overridden
from slotwise.console import Json, emit, say, table

if TYPE_CHECKING:
    from slotwise.archive.renewal import Renewal


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(fetch)
    app.command()(renew)
    export = typer.Typer(no_args_is_help=True, help="Write a model in the form that another server wants.")
    export.command()(triton)
    export.command()(sagemaker)
    app.add_typer(export, name="export")
    app.command()(migrate)


def fetch(
    models: Annotated[Path, typer.Argument(help="A TOML list: [[archive]] with file, url and sha256, or model and weights.")],
    out: Annotated[Path, typer.Option(help="The folder to fill.")] = Path("model_store"),
    as_json: Json = False,
) -> None:
    """Put the archives of a list into a folder: copied, downloaded by URL and SHA-256, or built from weights by id."""
    from slotwise.deploy.model_list import fill

    archives = fill(models, out, say)
    rows = [[info.name, info.version, info.path.name] for info in archives]
    emit(
        [{"name": name, "version": version, "file": file} for name, version, file in rows],
        as_json,
        lambda: table("", ["model", "version", "archive"], rows),
    )


def renew(
    archives: Annotated[
        list[str], typer.Argument(metavar="ARCHIVE...", help="One .mar file or built model's name, or several.")
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write the renewed archive there, and leave the old one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also where it then answers its examples otherwise.")] = False,
    as_json: Json = False,
) -> None:
    """Put today's worker into archives of earlier releases, handlers and weights untouched, once it has been tried."""
    from dataclasses import asdict

    from slotwise.archive.renewal import renew as renewed
    from slotwise.archive.store import archive_of
    from slotwise.worker.environment.digests import file_sha256

    if out_file is not None and len(archives) > 1:
        raise typer.BadParameter("it names one file: renew one archive at a time", param_hint="--out")
    done: list[Renewal] = []
    try:
        for archive in archives:
            done.append(renewed(archive_of(archive), out_file, force=force, say=say))
    finally:  # also where the next one fails: these are written
        data = [{**asdict(one), "archive": str(one.archive), "sha256": file_sha256(one.archive)} for one in done]
        if done:
            emit(data[0] if len(archives) == 1 else data, as_json, lambda: typer.echo("\n".join(map(_line, done))))


def _line(one: Renewal) -> str:
    if one.before == one.after and not one.tried:
        return f"{one.archive}: nothing to do, it carries today's worker"
    outcome = f"{one.examples} example(s) answered"
    if not one.examples:
        outcome = "it starts; it carries no examples, so no answer was compared"
    elif one.compared:
        outcome += ", otherwise than before: " + ", ".join(one.changed) if one.changed else ", as before"
    else:
        outcome += "; the old worker gave no answers, so nobody compared"
    return f"renewed {one.archive}: the worker of {one.before} is that of {one.after} now; {outcome}"


def triton(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or a .mar file.")],
    out_dir: Annotated[Path, typer.Option("--out", help="The model repository; it is made where it is missing.")],
    profile: Profile = "cpu",
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Another name for the model.")] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Only the ONNX graph, for Triton's own backend: no handler runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a model into a Triton model repository: its archive, model.py, and config.pbtxt from the profile."""
    from slotwise.archive.triton.native import export_native
    from slotwise.archive.triton.repository import export
    from slotwise.deploy.deploy import obtain, of_model
    from slotwise.files import project
    from slotwise.profiles.profile import load_profile

    project.enter()
    overrides = overridden(set_)
    info = obtain(model, project.model_store(), say=say)
    settings = of_model(info, load_profile(profile, overrides, {}, cores=0), overrides, "triton")
    about: dict[str, Any] = {}
    if native:
        written = export_native(info, settings, out_dir, name=name)
        folder, about = written.folder, {"batch_size": written.batch_size, "notes": written.notes}
    else:
        folder = export(info, settings, out_dir, name=name, overrides=overrides)

    def render() -> None:
        typer.echo(f"wrote {folder}")
        for note in about.get("notes", []):
            typer.echo(f"note: {note}")
        typer.echo(f"next: tritonserver --model-repository={out_dir.resolve()}")

    emit({"folder": str(folder), "model": name or info.name, "archive_sha256": info.sha256, **about}, as_json, render)


def sagemaker(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or a .mar file.")],
    out_file: Annotated[Path | None, typer.Option("--out", help="The tarball to write (default: NAME.tar.gz).")] = None,
    as_json: Json = False,
) -> None:
    """Write a model.tar.gz for an endpoint that runs an image of ours: the archive, and nothing else."""
    from slotwise.deploy.deploy import obtain
    from slotwise.files import project
    from slotwise.migrate.sagemaker import export_sagemaker

    project.enter()
    info = obtain(model, project.model_store(), say=say)
    out_file = out_file or Path(f"{info.name}.tar.gz")
    export_sagemaker(info, out_file)
    emit({"model": info.name, "written": str(out_file)}, as_json, lambda: f"wrote {out_file}")


def migrate(
    path: Annotated[
        Path,
        typer.Argument(help="TorchServe: the folder with its files. SageMaker: model.tar.gz."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="A new folder for what Slotwise serves.")] = None,
    image: Annotated[str, typer.Option(help="What your registry calls Dockerfile.torchserve's.")] = "slotwise-torchserve",
    name: Annotated[str | None, typer.Option(help="SageMaker: the model's name (default: that of --out).")] = None,
    as_json: Json = False,
) -> None:
    """Say what becomes of a TorchServe deployment or a SageMaker model here, and write it; exit with 1 where a part cannot."""
    from dataclasses import asdict

    from slotwise.errors import SlotwiseError
    from slotwise.migrate.deployment import migrate as migrate_deployment
    from slotwise.migrate.findings import worst
    from slotwise.migrate.sagemaker import is_sagemaker, migrate_sagemaker

    if not path.exists():
        raise SlotwiseError(f"there is no {path}", "name a deployment's folder, or a model.tar.gz")
    if is_sagemaker(path):
        findings = migrate_sagemaker(path, out, name or (out.name if out else "model"))
        command = f"slotwise serve {shlex.quote(str(out)) if out else 'FOLDER'} --server slotwise"
    else:
        findings, command = migrate_deployment(path, out, image)
    verdict = worst(findings)
    written = out if out and out.is_dir() and any(out.iterdir()) else None  # SageMaker's: not where it cannot be served
    data = {"verdict": verdict, "findings": [asdict(one) for one in findings], "written": str(written) if written else None}

    def render() -> Any:
        counts = {one: sum(finding.verdict == one for finding in findings) for one in ("works", "note", "cannot")}
        summary = ", ".join(f"{count} {one}" for one, count in counts.items() if count)
        typer.echo(f"{path}: {summary}")
        if written:
            typer.echo(f"wrote {written}\nstart it: {command}")
        else:
            typer.echo("nothing was written" + ("" if out else ": name a folder with --out"))
        return table("", ["what", "", "about"], [[one.what, one.verdict, one.about] for one in findings])

    emit(data | ({"start": command} if written else {}), as_json, render)
    if verdict == "cannot":
        raise typer.Exit(1)
