"""See that a worker has ended before its server says so.

The server answers what a dead worker had in hand, but it takes its time to notice. A further copy of such a request, sent
meanwhile, might end another worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from slotwise.server.processes import start_time

NOTICE_S = 3.0  # a server that has not answered by then never had the request in hand


class WorkerEnds:
    """One model's workers, by their pids; those that cannot be seen, in another container, tell it nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive: dict[int, float] = {}  # pid: when it started
        self._ended_at = float("-inf")

    def follow(self, pids: Iterable[int]) -> None:
        """These are its workers now."""
        for pid in pids:
            started = start_time(pid) if pid else None
            if started is not None:
                self._alive[pid] = started

    def just_now(self) -> bool:
        """Whether one has ended, and the server may not have answered yet what it had in hand."""
        for pid, started in list(self._alive.items()):
            if start_time(pid) != started or _dumps_core(pid):
                del self._alive[pid]
                self._ended_at = self._clock()
        return self._clock() - self._ended_at < NOTICE_S


def _dumps_core(pid: int) -> bool:
    try:
        return "CoreDumping:\t1" in Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return False
