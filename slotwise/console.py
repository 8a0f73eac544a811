"""Print for commands: tables and progress bars for people, JSON for programs (`--json`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PIPE_COLUMNS = 240
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def out() -> Console:
    """The console for answers (stdout)."""
    return _console()


def err() -> Console:
    """The console for progress and errors (stderr)."""
    return _console(stderr=True)


def _console(stderr: bool = False) -> Console:
    """A console. A file or a pipe counts as wide, so that nothing is wrapped or cut there."""
    from rich.console import Console  # noqa: PLC0415  slow to import

    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console


def emit(data: Any, as_json: bool, render: Callable[[], Any] | None = None) -> None:
    """Print `data` as JSON, or what `render` returns (a string, any rich renderable or a list of them) for people.

    A string is never wrapped: it is one line for whoever reads it from a pipe.
    """
    if as_json or render is None:
        sys.stdout.write(_as_json(data) + "\n")
        return
    rendered = render()
    for part in rendered if isinstance(rendered, list) else [rendered]:
        if part is not None:
            out().print(part, soft_wrap=isinstance(part, str), markup=False)  # it may have others' words


def _as_json(data: Any) -> str:
    """JSON that every program reads: a number that is none, or has no end, is null."""
    try:
        return json.dumps(data, indent=2, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(data, default=str), parse_constant=lambda name: None), indent=2)


def table(title: str, columns: list[str], rows: list[list[Any]]) -> Any:
    """A rich table. A column of numbers is aligned to the right."""
    from rich.table import Table  # noqa: PLC0415  slow to import
    from rich.text import Text  # noqa: PLC0415  slow to import

    rich_table = Table(title=Text(title) if title else None, title_justify="left")
    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    for name, right in zip(columns, numeric, strict=True):
        rich_table.add_column(name, justify="right" if right else "left")
    for row in rows:
        rich_table.add_row(*[Text(str(cell)) for cell in row])  # as it is: a cell may have others' words
    return rich_table


def progress() -> Progress:
    """A progress bar on stderr with elapsed time; shows nothing where stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  slow to import

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = err()
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def say(message: str) -> None:
    """One line of progress on stderr; a disk that is full there ends nothing."""
    with suppress(OSError):
        err().print(message, highlight=False, soft_wrap=True, markup=False)
