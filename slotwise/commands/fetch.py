"""slotwise fetch: fill a model store from a list, as the init container of a pod does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.console import Json, emit, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(fetch)


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
