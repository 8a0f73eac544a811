"""Every slip that docs/operate.md lists, typed on the real thing: what is said is there word by word, but for numbers.

The page is the table. A command's lines may come on either stream; no traceback is among them, and nothing is harmed.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.deploy.shares import share_cores
from slotwise.worker.cores import available_cores
from tests.server.conftest import build_handler
from tests.server.foreground import ENVIRON
from tests.server.test_foreign import foreign
from tests.test_docs import missing

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text("utf-8")
FIRST = "slotwise serve digits broken quick --detach"  # before it no server runs


def slips() -> list[tuple[str, list[str]]]:
    """Every command of the page's slips with the lines printed below it, in the page's order."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```slips\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


SLIPS = slips()
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
    assert typed(folder, "slotwise stop").returncode == 0


def typed(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command as a person types it in that folder; its streams together. The server takes free ports."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "serve":
        arguments += ["--port", "0"]
    return subprocess.run(
        [sys.executable, "-m", "slotwise.cli", *arguments],
        cwd=folder,
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


def compare(folder: Path, command: str, lines: list[str]) -> str:
    """Type it: the page's lines are printed, and the exit code is 1 where one of them is an error. Returns what was printed."""
    done = typed(folder, command)
    assert missing(lines, done.stdout) == [], (command, done.stdout)
    assert "Traceback" not in done.stdout, (command, done.stdout)
    failed = any(line.startswith("error: ") or "HTTP 400" in line or " -> " in line for line in lines)
    assert done.returncode == (1 if failed else 0), (command, done.returncode, done.stdout)
    return done.stdout


@pytest.mark.parametrize(("command", "lines"), OFFLINE)
def test_a_slip_without_a_server(command: str, lines: list[str], folder: Path) -> None:
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
            tried = subprocess.run(
                ["bash", "-c", line], cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=120, check=False
            )
            assert json.loads(tried.stdout)["label"] == "0", (line, tried)
            described = json.loads(typed(folder, "slotwise describe digits --json").stdout)
            assert described["threads"] == share_cores(["digits", "broken", "quick"], available_cores(), {})["digits"]


def test_a_folder_that_holds_nothing_is_named_before_anything_is_made(tmp_path: Path) -> None:
    done = typed(tmp_path, "slotwise build no-such-model")
    assert done.stdout.splitlines()[0] == f"{tmp_path} is no project yet: .slotwise/ and model_store/ are made there"
    assert list(tmp_path.iterdir()) == []
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    done = typed(tmp_path, f"slotwise --home {home} build no-such-model")
    assert "is no project yet" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
