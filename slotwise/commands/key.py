"""slotwise key add / rotate / list / remove: who may ask the gateway."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from slotwise.console import Json, emit, say, table

File = Annotated[Path, typer.Option("--keys", help="The file of keys that the gateway reads.")]
For = Annotated[str, typer.Option("--for", help="How long the new key opens anything, e.g. 12h or 90d; without it: for good.")]
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(no_args_is_help=True, help="Keys for the gateway: `slotwise gateway --keys FILE` lets in who has one.")
    app.add_typer(keys, name="key")
    keys.command("add")(add)
    keys.command("rotate")(rotate)
    keys.command("list")(list_keys)
    keys.command("remove")(remove)


def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: File = Path("keys.json"),
    models: Annotated[str | None, typer.Option(help="The models it may use, with commas between; all where left away.")] = None,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second at most; 0: any number.")] = 0.0,
    lasts: For = "",
    weight: Annotated[int, typer.Option(min=1, max=100, help="How many of its requests go in its turn, where keys wait.")] = 1,
    priority: Annotated[int, typer.Option(min=-9, max=9, help="Keys of a higher one go first, whoever else waits.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a key and print it: this once, for the file holds only its hash."""
    from slotwise.frontend.admission import keys

    until = _from_now(lasts, "--for")
    which = tuple(part.strip() for part in (models or "").split(",") if part.strip())
    if models is not None and not which:  # an empty variable of a script is not all models
        raise typer.BadParameter("it names no model; without it a key opens all", param_hint="--models")
    new = keys.add(file, name, which, rate, until, weight, priority)
    emit({"name": name, "key": new, "file": str(file), "until": until}, as_json, lambda: new)
    say(f"the key of {name}, printed this once; {file} holds its hash")


def rotate(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    file: File = Path("keys.json"),
    keep: Annotated[str, typer.Option(help="How long the old key opens something beside the new one, e.g. 30m, 24h.")] = "24h",
    lasts: For = "",
    as_json: Json = False,
) -> None:
    """Make a second key under a name and print it; the old one, with the same models and rate, ends after a while."""
    from slotwise.frontend.admission import keys

    old_until, until = _from_now(keep or "0s", "--keep"), _from_now(lasts, "--for")
    new = keys.rotate(file, name, old_until, until)
    emit({"name": name, "key": new, "file": str(file), "until": until, "old_until": old_until}, as_json, lambda: new)
    say(f"the new key of {name}, printed this once; the old one ends {_shown(old_until)} at the latest")


def list_keys(file: File = Path("keys.json"), as_json: Json = False) -> None:
    """The keys by name: the models each may use, how often, and until when."""
    from slotwise.frontend.admission import keys

    known = keys.read(file)
    listed = [
        {
            "name": key.name,
            "models": list(key.models),
            "requests_per_s": key.requests_per_s,
            "until": key.until,
            "weight": key.weight,
            "priority": key.priority,
        }
        for key in known
    ]
    rows: list[list[object]] = [
        [
            key.name,
            ", ".join(key.models) or "all",
            key.requests_per_s or "any",
            key.weight,
            key.priority,
            f"{'ended ' * key.ended}{_shown(key.until)}",
        ]
        for key in known
    ]
    emit(listed, as_json, lambda: table("", ["name", "models", "requests a second", "weight", "priority", "until"], rows))


def remove(
    name: Annotated[str, typer.Argument(help="Whose key it was.")],
    file: File = Path("keys.json"),
    old: Annotated[bool, typer.Option("--old", help="Only the older one of two.")] = False,
    as_json: Json = False,
) -> None:
    """Take a name's keys away; a running gateway notices within a second."""
    from slotwise.frontend.admission import keys

    keys.remove(file, name, old=old)
    emit({"removed": name, "file": str(file), "old": old}, as_json, lambda: None)
    say(f"the {'older ' if old else ''}key of {name} opens nothing any more")


def _from_now(text: str, option: str) -> float:
    """The Unix time that lies so far ahead; 0 for ""."""
    if not text:
        return 0.0
    duration = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if duration is None:
        raise typer.BadParameter(f"{text!r} is no time such as 30m, 24h or 90d", param_hint=option)
    return time.time() + int(duration[1]) * UNITS_S[duration[2]]


def _shown(until: float) -> str:
    try:
        return datetime.fromtimestamp(until).astimezone().isoformat(" ", "seconds") if until else "removed"
    except (ValueError, OverflowError):
        return "the year 9999 is over"
