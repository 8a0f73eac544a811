"""Replace a worker that has come to take too much memory, between two batches, once another one is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from slotwise.profiles.memory import resident_bytes

log = logging.getLogger("slotwise.host")

LOOK_S = 1.0


class GrowingWorker(Protocol):
    """What is known of a worker here."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def status(self) -> str: ...
    def retire(self) -> None: ...


class WorkerMemory:
    """Watches one model's workers. limit_bytes: of each. leaving: they go once there are others in their places.

    What takes more than the limit as soon as it has started is left alone, and said: another one would take as much.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.leaving: list[GrowingWorker] = []
        self._too_large: set[str] = set()

    def started(self, worker: GrowingWorker) -> None:
        """A worker is ready for its first batch."""
        taken = resident_bytes(worker.pid)
        if taken > self.limit_bytes:
            self._too_large.add(worker.name)
            log.error("worker %s takes %d MiB at its start, more than max_memory_mb: it stays", worker.name, taken >> 20)

    def settle(self, workers: Iterable[GrowingWorker], wanted: int) -> None:
        """Let go those that are to leave, as far as others are ready in their places."""
        surplus = sum(one.status == "READY" for one in workers) - wanted
        for one in self.leaving[: max(0, surplus)]:
            self.leaving.remove(one)
            one.retire()

    def ended(self, worker: GrowingWorker) -> None:
        """A worker is gone, for whatever reason."""
        self._too_large.discard(worker.name)
        if worker in self.leaving:
            self.leaving.remove(worker)

    def look(self, workers: Iterable[GrowingWorker]) -> int:
        """Choose who is to leave; returns how many more than before."""
        known = {*(one.name for one in self.leaving), *self._too_large}
        grown = [one for one in workers if one.status == "READY" and one.name not in known]
        before = len(self.leaving)
        for one in grown:
            if (taken := resident_bytes(one.pid)) > self.limit_bytes:
                log.warning("worker %s takes %d MiB, more than max_memory_mb: another one is started", one.name, taken >> 20)
                self.leaving.append(one)
        return len(self.leaving) - before

    async def watch(self, workers: Callable[[], Iterable[GrowingWorker]], grown: Callable[[int], None]) -> None:
        """Look at them again and again. grown(count): so many more are to leave."""
        while True:
            await asyncio.sleep(LOOK_S)
            if count := self.look(workers()):
                grown(count)
