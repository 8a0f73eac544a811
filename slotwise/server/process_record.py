"""What the records of a server and of a gateway have in common: which process it is, and whether it still runs."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from slotwise.console import say
from slotwise.server.processes import start_time

WRITTEN_IN = "written_in"  # the folder that a record was written in


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
        content = {**asdict(self), WRITTEN_IN: file.parent.absolute()}
        partial.write_text(json.dumps(content, indent=2, default=str), "utf-8")
        partial.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The record in this file; None where there is none or it cannot be read."""
        try:
            return cls(**content_of(file))
        except (OSError, ValueError, TypeError):
            return None


def content_of(file: Path) -> dict[str, Any]:
    """What a record's file has in it. Raises ValueError where it came here with a copy of its folder.

    The process belongs to the folder that was copied: from the copy nobody stops it.
    """
    content = dict[str, Any](json.loads(file.read_text("utf-8")))
    written_in = Path(content.pop(WRITTEN_IN, file.parent))
    if written_in.exists() and not written_in.samefile(file.parent):
        _say_copied(file, written_in)
        raise ValueError(f"{file} is a copy")
    return content


@functools.cache  # once: records are read again and again
def _say_copied(file: Path, written_in: Path) -> None:
    say(f"{file} is a copy and is passed over: what it names belongs to {written_in}")
