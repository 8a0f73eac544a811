"""A command in the foreground, and a signal that hits it at a moment of chance, most often right after a line was printed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

ENVIRON = {key: value for key, value in os.environ.items() if key not in ("SLOTWISE_HOME", "JAVA_HOME")}
ROUND = "SIGNAL_TEST_ROUND"  # every process of a round carries it
SIGNALS = (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 300
START = ""  # in a list of lines: the moment when the command has taken the signals over


@dataclass
class Ended:
    """What came of it. lines: without empty ones. left: processes that outlived the command; they are killed by now."""

    code: int
    lines: list[str]
    when: str
    left: list[str] = field(default_factory=list)

    def shows(self, text: str) -> bool:
        """Whether a line with that text was printed."""
        return any(text in line for line in self.lines)

    def stopped(self) -> tuple[int, str]:
        """The exit code and the last line."""
        return self.code, (self.lines or [""])[-1]


def rounds(count: int, *, quick: int) -> Any:
    """The rounds of a test; those after the first `quick` are in the long run."""
    return pytest.mark.parametrize("n", [pytest.param(n, marks=[pytest.mark.long] if n >= quick else []) for n in range(count)])


def struck(command: str, arguments: Sequence[str], lines: Sequence[str], n: int, folder: Path, **environ: str) -> Ended:
    """Round `n` of a command: the signal comes after the n-th of `lines` in turn was printed, three times in four at once.

    One in three is Ctrl-C as a terminal sends it, to the whole process group; every second is followed by another signal.
    """
    chance = random.Random(f"{command} {n}")
    line, number = lines[n % len(lines)], chance.choice(SIGNALS)
    delay_s = chance.uniform(0, 0.003) if chance.random() < 0.75 else chance.uniform(0, 1.5)
    own = {ROUND: uuid.uuid4().hex, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    output = folder / "output.txt"  # no pipe: what was started and left over would keep it open
    with output.open("wb") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "slotwise.cli", command, *arguments],
            cwd=folder,
            env={**ENVIRON, **own, **environ},
            stdout=target,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=hear_hangups,
        )
    _until(process, line, output)
    time.sleep(delay_s)
    group = number == signal.SIGINT and chance.random() < 0.5
    send(process, number, group)
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, 0.4))
        send(process, chance.choice(SIGNALS), group)
    try:
        process.wait(PATIENCE_S)
    finally:
        left = end_round(own[ROUND])
    when = f"{number.name}{' to the group' if group else ''} {delay_s * 1000:.1f} ms after {line or 'the start'!r}"
    ended = Ended(process.returncode, [line for line in output.read_text("utf-8").splitlines() if line], when, left)
    told = (when, ended.code, ended.lines)
    assert not ended.shows("Traceback"), told
    assert not ended.shows("Exception ignored"), told
    assert left == [], told
    return ended


def hear_hangups() -> None:
    """In the child: hear a closed terminal also where the tests run under nohup, which makes children ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _until(process: subprocess.Popen[bytes], line: str, output: Path) -> None:
    """Wait until the line is there, or the command has ended; START: until it handles SIGTERM, which Python alone does not."""

    def there() -> bool:
        return handles(process.pid, signal.SIGTERM) if line == START else line in output.read_text("utf-8")

    while process.poll() is None and not there():
        time.sleep(0.001)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    with contextlib.suppress(OSError, StopIteration, ProcessLookupError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def send(process: subprocess.Popen[bytes], number: signal.Signals, group: bool) -> None:
    """Send a signal to a process, or to its whole group; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def end_round(token: str) -> list[str]:
    """Kill every process of a round; returns what they were."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(ROUND) == token and process.status() != psutil.STATUS_ZOMBIE:
                left.append(" ".join(process.cmdline()))
                process.kill()
    return left
