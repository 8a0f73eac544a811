"""export: a model as other servers want it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.commands.options import Profile, Set, overridden
from slotwise.console import Json, emit, say


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    export = typer.Typer(no_args_is_help=True, help="Write a model in the form that another server wants.")
    export.command()(triton)
    app.add_typer(export, name="export")


def triton(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or a .mar file.")],
    out_dir: Annotated[Path, typer.Option("--out", help="The model repository; it is made where it is missing.")],
    profile: Profile = "cpu",
    set_: Set = None,
    name: Annotated[str | None, typer.Option(help="Another name for the model.")] = None,
    as_json: Json = False,
) -> None:
    """Write a model into a Triton model repository: its archive, model.py, and config.pbtxt from the profile."""
    from slotwise.archive.triton.repository import export
    from slotwise.deploy.deploy import obtain, of_model
    from slotwise.files import project
    from slotwise.profiles.profile import load_profile

    project.enter()
    overrides = overridden(set_)
    info = obtain(model, project.model_store(), say=say)
    settings = of_model(info, load_profile(profile, overrides, {}, cores=0), overrides, "triton")
    folder = export(info, settings, out_dir, name=name, overrides=overrides)

    def render() -> None:
        typer.echo(f"wrote {folder}")
        typer.echo(f"next: tritonserver --model-repository={out_dir.resolve()}")

    emit({"folder": str(folder), "model": name or info.name, "archive_sha256": info.sha256}, as_json, render)
