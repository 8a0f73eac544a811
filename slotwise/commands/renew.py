"""renew: today's worker in an archive of an earlier release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotwise.console import Json, emit, say

if TYPE_CHECKING:
    from slotwise.archive.renewal import Renewal


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(renew)


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

    from slotwise.archive.inspection import file_sha256
    from slotwise.archive.renewal import renew as renewed
    from slotwise.archive.store import archive_of

    if out_file is not None and len(archives) > 1:
        raise typer.BadParameter("it names one file: renew one archive at a time", param_hint="--out")
    done = [renewed(archive_of(archive), out_file, force=force, say=say) for archive in archives]
    data = [{**asdict(one), "archive": str(one.archive), "sha256": file_sha256(one.archive)} for one in done]
    emit(data[0] if len(data) == 1 else data, as_json, lambda: typer.echo("\n".join(map(_line, done))))


def _line(one: Renewal) -> str:
    if one.before == one.after and not one.tried:
        return f"{one.archive}: nothing to do, it carries today's worker"
    told = f"{one.examples} example(s) answered"
    if one.compared:
        told += ", otherwise than before: " + ", ".join(one.changed) if one.changed else ", as before"
    else:
        told += "; the old worker answers on a server only, so nobody compared"
    return f"renewed {one.archive}: the worker of {one.before} is that of {one.after} now; {told}"
