"""Takes a tuner's trial models away when the tuner itself cannot: `python -m slotwise.tune.guard STATE_DIR`.

The tuner tells it on stdin what it registers (`+ MODEL ARCHIVE`) and unregisters (`- MODEL ARCHIVE`). When stdin ends,
because the tuner is done, was interrupted or was killed, whatever is left is unregistered and deleted.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.record import ServerRecord


class Guard:
    """The tuner's side: a process of its own session, so that Ctrl-C does not reach it."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slotwise.tune.guard", str(state_dir)],
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
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


def watch(lines: TextIO, record: ServerRecord) -> None:
    """Keep account until `lines` ends, then clear what is left."""
    from slotwise.management import ManagementClient

    left: dict[str, Path] = {}
    for line in lines:
        sign, model, path = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            left[model] = Path(path)
        else:
            left.pop(model, None)
    for archive in left.values():
        archive.unlink(missing_ok=True)
    if left and record.alive():
        with ManagementClient(record) as management:
            for model in left:
                with contextlib.suppress(SlotwiseError):
                    management.unregister(model)


if __name__ == "__main__":
    from slotwise.record import ServerRecord as Record

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    found = Record.load(Path(sys.argv[1]))
    if found is not None:
        watch(sys.stdin, found)
