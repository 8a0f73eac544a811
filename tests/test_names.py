"""One name for one thing: no module and no class of slotwise/ shares its name with another one that means something else."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "slotwise"

# Names that occur more than once, each with the reason. `test_every_exception_is_still_needed` keeps the list short.
MODULES = {
    "apply": "commands/apply.py holds the command whose work deploy/apply.py does",
    "archive": "commands/archive.py holds the commands about what the room archive/ makes",
    "deploy": "the room, and the module with what all of the room is about",
    "gateway": "commands/gateway.py holds the command; the room, and the module with its class Gateway",
    "management": "commands/management.py holds the commands that call client/management.py",
    "profile": "commands/profile.py holds the commands about what profiles/profile.py reads",
    "server": "commands/server.py holds the commands about what the room server/ starts",
    "tune": "commands/tune.py holds the command whose work the room tune/ does",
}
CLASSES: dict[str, str] = {}


def sources() -> Iterator[Path]:
    """Every module of slotwise/; not what a built wheel carries as data."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.relative_to(PACKAGE).parts:
            yield path


def modules() -> dict[str, list[str]]:
    """Where each module name occurs; a room counts under its folder's name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        places[path.parent.name if path.name == "__init__.py" else path.stem].append(place)
    return places


def classes() -> dict[str, list[str]]:
    """Where each class name occurs, whatever its case, its leading underscore and its plural s."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                key = node.name.lstrip("_").lower().removesuffix("s")
                places[key].append(f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}")
    return places


def repeated(places: dict[str, list[str]]) -> dict[str, list[str]]:
    """The names that occur more than once."""
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_module_name_means_two_things() -> None:
    assert {name: where for name, where in repeated(modules()).items() if name not in MODULES} == {}


def test_no_class_name_means_two_things() -> None:
    assert {name: where for name, where in repeated(classes()).items() if name not in CLASSES} == {}


def test_every_exception_is_still_needed() -> None:
    assert set(MODULES) <= set(repeated(modules()))
    assert set(CLASSES) <= set(repeated(classes()))
