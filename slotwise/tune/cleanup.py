"""Unregister a tuner's trial models, also where the tuner was killed.

`python -m slotwise.tune.cleanup FOLDER` (the one of server.json) runs beside the tuner, which writes to its stdin what it
registers (`+ MODEL ARCHIVE`) and what it has unregistered (`- MODEL ARCHIVE`). When stdin ends, because the tuner is done,
was interrupted or was killed, the models that are left are unregistered and their archives deleted.
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
    from slotwise.server.record import ServerRecord

TIMEOUT_S = 60.0
PAUSE_S = 0.5


class TrialCleanup:
    """The tuner's handle on that process, which has a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotwise.tune.cleanup", str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def registers(self, model: str, archive: Path) -> None:
        """To be called before a model is registered."""
        self._tell(f"+ {model} {archive}")

    def unregistered(self, model: str, archive: Path) -> None:
        """To be called after a model was unregistered."""
        self._tell(f"- {model} {archive}")

    def close(self) -> None:
        """Let the process unregister what is left, and wait for its end."""
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
    """Keep account of the models until `lines` ends, then unregister what is left."""
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
    """Unregister the models until none is listed twice running.

    One attempt is not enough: MMS refuses while it still registers a model, and a registration may be under way.
    """
    deadline = time.monotonic() + TIMEOUT_S
    rounds_without = 0
    while rounds_without < 2 and time.monotonic() < deadline and management.record.alive():
        listed = models  # where the server does not answer, every model may be there
        with contextlib.suppress(SlotwiseError):
            listed = models & {model.name for model in management.list()}
        for model in listed:
            with contextlib.suppress(SlotwiseError):
                management.unregister(model)
        rounds_without = 0 if listed else rounds_without + 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    from slotwise.server.record import ServerRecord as Record

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server = Record.load(Path(sys.argv[1]))
    if server is not None:
        watch(sys.stdin, server)
