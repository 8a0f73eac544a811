"""What the records of a server and of a gateway have in common: which process it is, and whether it still runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from slotwise.server.processes import start_time


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """A process that was started. started: its `start_time`, None before it has a pid.

    It tells whether the pid is still the same process: the system gives pids of processes that have ended to others.
    """

    name: str
    pid: int
    started: float | None = None

    def alive(self) -> bool:
        """Whether that very process still runs."""
        return self.started is not None and start_time(self.pid) == self.started

    def write(self, file: Path) -> None:
        """Write the record as JSON, in one step; nobody else can read it."""
        partial = file.with_suffix(".json.partial")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(self), indent=2, default=str), "utf-8")
        partial.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The record in this file; None where there is none or it cannot be read."""
        try:
            return cls(**json.loads(file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
