"""Two hundred random command lines, most of them without a server: no traceback, no orphan, exit codes 0, 1, 2 and 130 only.

Sixteen of the twenty evenings are in the long run.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.command_lines import commands, line
from tests.server.conftest import build_handler
from tests.server.foreground import ENVIRON, ROUND, SIGNALS, end_round, handles, hear_hangups, rounds, send

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROUNDS, LINES = 20, 10
LOCALES = ("C", "POSIX", "C.UTF-8", "nowhere.UTF-8")
CODES = (0, 1, 2, 130)
STEP_S = 12  # what still runs then is interrupted
PATIENCE_S = 300
KNOWN = commands()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny archive; its model's folder is beside it."""
    return build_handler("faults", tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("models"))


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own in a folder; the plain folder where this user may mount nothing."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False)
    try:
        yield folder
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def folders(tmp_path: Path, archive: Path) -> Iterator[list[Path]]:
    """Where lines are typed: a project, one with umlauts, an empty folder, a disk of 1 MB, one that cannot be written."""
    project, umlauts, empty = tmp_path / "project", tmp_path / "prüfung", tmp_path / "empty"
    empty.mkdir()
    (project / "model_store").mkdir(parents=True)
    shutil.copy(archive, project / "model_store")
    (project / "model_store" / "cut.mar").write_bytes(archive.read_bytes()[:2000])
    (project / "folder.mar").mkdir()
    (project / "list.toml").write_text('[[archive]]\nfile = "model_store/cut.mar"\n', "utf-8")
    own = project / "own"
    own.mkdir()
    (own / "model.toml").write_text('name = "own"\nhandler = "faults.py"\n', "utf-8")
    shutil.copy(Path(__file__).parent / "handlers" / "faults.py", own)
    shutil.copytree(project, umlauts)
    with mounted(tmp_path / "small", "size=1m") as small, mounted(tmp_path / "readonly", "ro") as readonly:
        yield [project, project, umlauts, empty, small, readonly]


@pytest.mark.timeout(1500)
@rounds(ROUNDS, quick=4)
def test_a_clumsy_operator_does_no_harm(n: int, folders: list[Path]) -> None:
    chance = random.Random(f"clumsy {n}")
    with_server = n < 3
    if with_server:
        typed(folders[0], ["serve", "faults.mar", "--port", "0", "--detach"], chance, {}, None)
    try:
        for _ in range(LINES):
            arguments = line(chance, KNOWN)
            folder = folders[0] if with_server else chance.choice(folders)
            environ = {"LC_ALL": chance.choice(LOCALES)} if chance.random() < 0.3 else {}
            environ |= {"TMPDIR": str(folders[4])} if chance.random() < 0.1 else {}
            at_s = chance.choice((0.0, 0.02, 0.3, 1.5, 4.0)) if chance.random() < 0.25 else None
            typed(folder, arguments, chance, environ, at_s)
    finally:
        for folder in folders[:3]:
            stop_all(folder)


def typed(folder: Path, arguments: list[str], chance: random.Random, environ: dict[str, str], at_s: float | None) -> None:
    """Type one line; at_s: when it is interrupted, if at all. What is wrong with what came of it fails the test."""
    token = uuid.uuid4().hex
    output = folder.parent / "output.txt"
    with output.open("wb") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "slotwise.cli", *arguments],
            cwd=folder,
            env={**ENVIRON, "TMPDIR": str(folder.parent), **environ, ROUND: token},
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=hear_hangups,
        )
    try:
        interrupted = _wait(process, chance, at_s)
        about = (shlex.join(arguments), str(folder), environ, interrupted, output.read_text("utf-8", "replace")[-3000:])
        assert process.returncode in CODES, (process.returncode, about)
        assert "Traceback" not in about[-1], about
        assert "Exception ignored" not in about[-1], about
        if "--detach" in arguments:
            return  # what it left running on purpose is stopped at the end of the round
    finally:
        if process.poll() is None:
            process.kill()
        left = [] if "--detach" in arguments else end_round(token)
    assert left == [], about


def _wait(process: subprocess.Popen[bytes], chance: random.Random, at_s: float | None) -> str:
    """Wait until it has ended; interrupt it at its time, or when it takes long. Returns what was sent."""
    while process.poll() is None and not handles(process.pid, signal.SIGTERM):
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STEP_S if at_s is None else at_s)
        return ""
    number = chance.choice(SIGNALS)
    send(process, number, number == signal.SIGINT and chance.random() < 0.5)
    process.wait(PATIENCE_S)
    return number.name


def stop_all(folder: Path) -> None:
    """Stop every server and gateway of a folder, as a person would."""
    for state in sorted((folder / ".slotwise").glob("*")):
        if (state / "server.json").exists() or (state / "gateway.json").exists():
            command = [sys.executable, "-m", "slotwise.cli", "stop", state.name]
            environ = {**ENVIRON, "TMPDIR": os.fspath(folder.parent)}
            subprocess.run(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, check=True, capture_output=True)
