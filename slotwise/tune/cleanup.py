"""Takes a tuner's trial models away when the tuner itself cannot: `python -m slotwise.tune.cleanup FOLDER` (server.json's).

The tuner tells it on stdin what it registers (`+ MODEL ARCHIVE`) and unregisters (`- MODEL ARCHIVE`). When stdin ends,
because the tuner is done, was interrupted or was killed, whatever is left is unregistered and deleted.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held

if TYPE_CHECKING:
    from slotwise.client.management import ManagementClient
    from slotwise.server.record import ServerRecord

TIMEOUT_S = 60.0
PAUSE_S = 0.5


class TrialCleanup:
    """The tuner's side: a process of its own session, so that Ctrl-C does not reach it."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slotwise.tune.cleanup", str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def registers(self, model: str, archive: Path) -> None:
        """Say it before it is done."""
        self._tell(f"+ {model} {archive}")

    def unregistered(self, model: str, archive: Path) -> None:
        """Say it after it was done."""
        self._tell(f"- {model} {archive}")

    def close(self) -> None:
        """Let it take away what is left, and wait for it."""
        assert self.process.stdin is not None
        with held():
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            self.process.wait()

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with held():
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


def watch(lines: TextIO, record: ServerRecord) -> None:
    """Keep account until `lines` ends, then clear what is left."""
    left: dict[str, Path] = {}
    for line in lines:
        sign, model, path = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            left[model] = Path(path)
        else:
            left.pop(model, None)
    for archive in left.values():
        archive.unlink(missing_ok=True)
    if left:
        with ManagementClient(record) as management:
            clear(management, set(left))


def clear(management: ManagementClient, models: set[str]) -> None:
    """Unregister them until they stay away: MMS refuses while it still registers one, and a request may be under way."""
    stop_at, rounds_without = time.monotonic() + TIMEOUT_S, 0
    while rounds_without < 2 and time.monotonic() < stop_at and management.record.alive():
        there = models
        with contextlib.suppress(SlotwiseError):
            there = models & {listed.name for listed in management.list()}
        for model in there:
            with contextlib.suppress(SlotwiseError):
                management.unregister(model)
        rounds_without = 0 if there else rounds_without + 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    from slotwise.server.record import ServerRecord as Record

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    found = Record.load(Path(sys.argv[1]))
    if found is not None:
        watch(sys.stdin, found)
