"""Give the slots of an engine's caches to streams, and take them back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slotwise.worker.memory_ceiling import LONGEST_RETRY_S, RETRY_AFTER_S

logger = logging.getLogger(__name__)


class SlotTable:
    """Which slots are given. most: how many at once are believed to fit into memory, at least 1.

    Out of memory lowers `most`. When nothing has run out of memory for RETRY_AFTER_S, twice as many are tried.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        if count < 1:
            raise ValueError(f"an engine of {count} slots serves nobody")
        self.count, self.clock = count, clock
        self.given: set[int] = set()
        self.most = count
        self.retry_after_s = RETRY_AFTER_S
        self.retry_at = 0.0
        self.trial = False

    def give(self) -> int | None:
        """A slot that is nobody's; None where there is none, or no memory for it."""
        if len(self.given) >= self.count:
            return None
        if len(self.given) >= self.most:
            if self.clock() < self.retry_at:
                return None
            self.most = min(2 * self.most, self.count)
            self.trial = True
            self.retry_at = self.clock() + self.retry_after_s
        slot = next(number for number in range(self.count) if number not in self.given)
        self.given.add(slot)
        return slot

    def take_back(self, slot: int) -> None:
        """The slot is nobody's any more. Raises KeyError where it was not given."""
        self.given.remove(slot)

    def too_many(self, streams: int) -> None:
        """So many streams at once ran out of memory."""
        trial_failed = self.trial and self.clock() < self.retry_at
        self.retry_after_s = min(2 * self.retry_after_s, LONGEST_RETRY_S) if trial_failed else RETRY_AFTER_S
        self.trial = False
        self.retry_at = self.clock() + self.retry_after_s
        self.most = max(1, streams - 1)
        logger.warning("out of memory: from now on at most %d streams at once", self.most)

    def never_fits(self, before: int) -> None:
        """It was one stream that fits nowhere, which says nothing of how many others fit. before: `most` as it was."""
        self.most = max(self.most, before)
