"""One name for one thing: no module and no class of slotwise/ shares its name with another one that means something else."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "slotwise"

# Module names that occur more than once, each with the reason why that is one meaning. No class name does.
MODULES = {
    "apply": "commands/apply.py is the command line of deploy/apply.py",
    "archive": "commands/archive.py is the command line of the room archive/",
    "deploy": "deploy/deploy.py is what its room is about: from what a person names to a live model",
    "doctor": "commands/doctor.py is the command line of the room doctor/",
    "frontend": "frontend/frontend.py is what its room is about: the state of one gateway",
    "management": "commands/management.py is the command line of client/management.py",
    "profile": "commands/profile.py is the command line of profiles/profile.py",
    "rollout": "commands/rollout.py is the command line of deploy/rollout.py",
    "server": "commands/server.py is the command line of the room server/",
    "triton": "archive/triton/ is what server/triton/ serves",
    "tune": "commands/tune.py is the command line of the room tune/",
}


def sources() -> Iterator[Path]:
    """Every module of slotwise/; not what a built wheel carries as data."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.relative_to(PACKAGE).parts:
            yield path


def modules() -> dict[str, list[str]]:
    """Where each module name occurs; a room counts under its folder's name, and what is in a room's room under both names."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        place = path.relative_to(PACKAGE)
        parts = place.parent.parts if path.name == "__init__.py" else place.with_suffix("").parts
        places["/".join([*parts[1:-1], *parts[-1:]])].append(place.as_posix())
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
    assert repeated(classes()) == {}


def test_every_exception_is_still_needed() -> None:
    assert set(MODULES) - set(repeated(modules())) == set()
