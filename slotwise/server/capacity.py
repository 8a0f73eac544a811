"""How many workers this machine can hold: its cores, and the memory that is free.

Both servers take any number of workers and start them all. So whoever asks them to is asked this first.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.errors import SlotwiseError
from slotwise.profiles import memory
from slotwise.worker.environment.cores import available_cores

WORKERS_PER_CORE = 4  # beyond this they only wait for each other; one that waits for something else needs --force


@dataclass(frozen=True)
class Capacity:
    """What is free here and now."""

    cores: int
    free_bytes: int

    @classmethod
    def here(cls) -> Capacity:
        """This machine's, or this container's where that has less."""
        return cls(available_cores(), memory.free_bytes())

    def most_workers(self, worker_bytes: int, now: int = 0) -> int:
        """The largest number of workers of one model that fits; `now` of them run already."""
        by_memory = now + self.free_bytes // max(1, worker_bytes)
        return max(1, min(WORKERS_PER_CORE * self.cores, by_memory))

    def check(self, model: str, workers: int, worker_bytes: int, now: int = 0) -> None:
        """Raise SlotwiseError where so many workers of a model do not fit; fewer than there are now always do."""
        most = self.most_workers(worker_bytes, now)
        if workers <= max(most, now):
            return
        needed, free = workers * worker_bytes >> 20, (self.free_bytes + now * worker_bytes) >> 20
        raise SlotwiseError(
            f"{workers} workers of {model} do not fit here: {self.cores} cores, and {needed} MiB wanted of {free} MiB",
            f"{most} fit at most; --force starts them all the same",
        )
