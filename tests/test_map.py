"""docs/architecture.md and inside-the-worker.md name every room and every module of the tree, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "slotwise"


def rooms() -> dict[str, set[str]]:
    """Every room of the tree with its modules; "" has the loose ones."""
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        folder = file.parent.relative_to(PACKAGE)
        if "_data" not in folder.parts:
            found.setdefault("" if folder == Path() else f"{folder.as_posix()}/", set()).add(file.stem)
    return {room: names - {"__init__"} for room, names in found.items()}


def mapped() -> dict[str, set[str]]:
    """The table's rooms with the modules that it names."""
    table: dict[str, set[str]] = {"": set()}
    pages = [(ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("architecture", "inside-the-worker")]
    for line in "".join(page.partition("## Where a line lives")[2] for page in pages).splitlines():
        if cells := re.fullmatch(r"\| (`.*`) \| (.*) \|", line):
            names = re.findall(r"`([^`]+)`", cells[1])
            table[""] |= {name.removesuffix(".py") for name in names if name.endswith(".py")}
            for name in names:
                if name.endswith("/"):
                    table[name] = set(re.findall(r"`([a-z0-9_]+)`", cells[2]))
    return table


def test_the_map_names_every_room_and_every_module() -> None:
    tree, table = rooms(), mapped()
    assert set(table) == set(tree)
    for room, modules in tree.items():
        assert modules - table[room] == set(), f"slotwise/{room} in docs/architecture.md or docs/inside-the-worker.md"


def test_the_map_names_nothing_that_is_not_there() -> None:
    every = {name for names in rooms().values() for name in names}
    for room, names in mapped().items():
        assert names - every == set(), f"slotwise/{room} in docs/architecture.md"


def test_no_room_is_crowded_and_no_file_is_long() -> None:
    """A reader sees a folder of 16 modules at once, and reads a file of 300 lines."""
    assert {room: len(names) for room, names in rooms().items() if len(names) > 16} == {}
    assert len(rooms()[""]) <= 6
    lengths = {file: len(file.read_text("utf-8").splitlines()) for file in PACKAGE.rglob("*.py") if "_data" not in file.parts}
    assert {file: lines for file, lines in lengths.items() if lines > 300} == {}
