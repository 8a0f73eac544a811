"""Every slip that docs/trouble.md lists, typed on the real thing: what is said is there word by word, but for numbers.

The page is the table. A command's lines may come on either stream; no traceback is among them, and nothing is harmed.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.deploy.shares import share_cores
from slotwise.worker.environment.cores import available_cores
from tests.server.conftest import build_handler
from tests.support.foreign import foreign
from tests.support.pages import Typed, commands, missing, typed

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trouble.md").read_text("utf-8")
FIRST = "slotwise serve digits broken quick --detach"  # before it no server runs


SLIPS = [(command.text, command.shown) for command in commands(PAGE, "slips")]  # in the page's order
OFFLINE = SLIPS[: [command for command, _ in SLIPS].index(FIRST)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Path]:
    """A project with digits, a broken model, somebody else's archive, and quick in two versions; no server runs at the end."""
    folder = tmp_path_factory.mktemp("evening")
    archives, work = folder / "model_store", folder / "work"
    shutil.copytree(
        store, archives, ignore=lambda _, names: {name for name in names if not name.startswith(("digits", "broken"))}
    )
    build_handler("quick", archives, work)
    (work / "quick-1.0").rename(folder / "quick")
    foreign(work, "theirs").rename(folder / "theirs.mar")
    (folder / "photos").mkdir()
    picture = (ROOT / "models" / "digits" / "examples" / "7.png").read_bytes()
    (folder / "seven.png.gz").write_bytes(gzip.compress(picture))
    yield folder
    assert entered(folder, "slotwise stop").code == 0


def entered(folder: Path, command: str) -> Typed:
    """A command as a person types it in that folder. The server takes free ports."""
    more = " --port 0" if command.startswith("slotwise serve ") else ""
    return typed([f"{command}{more}"], folder, folder.parent / "output.txt")


def compare(folder: Path, command: str, lines: Sequence[str]) -> str:
    """Type it: the page's lines are printed, and the exit code is 1 where one of them is an error. Returns what was printed."""
    done = entered(folder, command)
    (printed,) = done.printed
    assert missing(lines, printed) == [], (command, printed)
    assert "Traceback" not in printed, (command, printed)
    failed = any(line.startswith("error: ") or "HTTP 400" in line or " -> " in line for line in lines)
    assert done.code == (1 if failed else 0), (command, done)
    return printed


@pytest.mark.parametrize(("command", "lines"), OFFLINE)
def test_a_slip_without_a_server(command: str, lines: tuple[str, ...], folder: Path) -> None:
    compare(folder, command, lines)
    assert not (folder / ".slotwise" / "default" / "server.json").exists()


@pytest.mark.timeout(2400)
def test_the_evening_on_a_server(folder: Path) -> None:
    """The slips that need a server, one after the other, on the same one."""
    for command, lines in SLIPS[len(OFFLINE) :]:
        if command == "slotwise build quick":  # its folder says another version now
            (folder / "quick" / "model.toml").write_text('name = "quick"\nversion = "2.0"\nhandler = "faults.py"\n')
        if command == "slotwise drift cpu":  # somebody puts another archive of the same version there
            other = folder / "other"
            shutil.copytree(folder / "quick", other)
            (other / "model.toml").write_text('name = "quick"\nversion = "1.0"\nhandler = "faults.py"\ndescription = "other"\n')
            (folder / "model_store" / "quick.mar").unlink()
            (folder / "model_store" / "quick-2.0.mar").rename(folder / "kept")
            build(other, folder / "model_store")
            (folder / "kept").rename(folder / "model_store" / "quick-2.0.mar")
        printed = compare(folder, command, lines)
        if command == FIRST:
            line = next(line.removeprefix("try: ") for line in printed.splitlines() if line.startswith("try: "))
            (tried,) = entered(folder, f"{line} 2>/dev/null").printed
            assert json.loads(tried)["label"] == "0", (line, tried)
            described = json.loads(entered(folder, "slotwise describe digits --json").printed[0])
            assert described["threads"] == share_cores(["digits", "broken", "quick"], available_cores(), {})["digits"]


def test_a_folder_that_holds_nothing_is_named_before_anything_is_made(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    done = entered(folder, "slotwise build no-such-model")
    assert done.printed[0].splitlines()[0] == f"{folder} is no project yet: .slotwise/ and model_store/ are made there"
    assert list(folder.iterdir()) == []
    home = folder / "home"
    (home / "models").mkdir(parents=True)
    done = entered(folder, f"slotwise --home {home} build no-such-model")
    assert "is no project yet" not in done.printed[0]
    assert [path.name for path in folder.iterdir()] == ["home"]
