"""slotwise key add / list / remove: who may ask the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.console import Json, emit, say, table

File = Annotated[Path, typer.Option("--keys", help="The file of keys that the gateway reads.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(no_args_is_help=True, help="Keys for the gateway: `slotwise gateway --keys FILE` lets in who has one.")
    app.add_typer(keys, name="key")
    keys.command("add")(add)
    keys.command("list")(list_keys)
    keys.command("remove")(remove)


def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: File = Path("keys.json"),
    models: Annotated[str, typer.Option(help="The models it may use, with commas between; all where left away.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Requests a second at most; 0: any number.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Make a key and print it: this once, for the file holds only its hash."""
    from slotwise.gateway import keys

    new = keys.add(file, name, tuple(part.strip() for part in models.split(",") if part.strip()), rate)
    emit({"name": name, "key": new, "file": str(file)}, as_json, lambda: new)
    say(f"the key of {name}, printed this once; {file} holds its hash")


def list_keys(file: File = Path("keys.json"), as_json: Json = False) -> None:
    """The keys by name: the models each may use, and how often."""
    from slotwise.gateway import keys

    known = keys.read(file)
    found = [{"name": key.name, "models": list(key.models), "requests_per_s": key.requests_per_s} for key in known]
    rows: list[list[object]] = [[key.name, ", ".join(key.models) or "all", key.requests_per_s or "any"] for key in known]
    emit(found, as_json, lambda: table("", ["name", "models", "requests a second"], rows))


def remove(name: Annotated[str, typer.Argument(help="Whose key it was.")], file: File = Path("keys.json")) -> None:
    """Take a key away; a running gateway notices within a second."""
    from slotwise.gateway import keys

    keys.remove(file, name)
    say(f"the key of {name} opens nothing any more")
