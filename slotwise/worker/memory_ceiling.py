"""Know how many rows at once fit into the memory of the model's device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slotwise.worker.padding import Padding, ladder

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 60.0  # without an out-of-memory; then a size above the ceiling is tried
LONGEST_RETRY_S = 3600.0  # each trial that fails doubles the wait, up to this


class MemoryCeiling:
    """The most rows at once that are believed to fit. clock: seconds that never go back.

    Out of memory is the fault of no row: the size that fits becomes the ceiling of later groups. When no call has run out of
    memory for RETRY_AFTER_S, the next larger size is tried once.
    """

    def __init__(self, padding: Padding, clock: Callable[[], float] = time.monotonic) -> None:
        self.padding, self.clock = padding, clock
        self.rows = padding.max_rows
        self.retry_after_s = RETRY_AFTER_S
        self.retry_at = 0.0  # on `clock`: when a size above the ceiling may be tried

    def limit(self, rows: int) -> int:
        """The most rows that may run at once: the ceiling, or one step more when memory has been enough for a while."""
        if self.rows >= min(rows, self.padding.max_rows) or self.clock() < self.retry_at:
            return self.rows
        return next(rung for rung in reversed(ladder(self.padding.max_rows)) if rung > self.rows)

    def lower(self, size: int) -> None:
        """A warm-up of `size` rows did not fit."""
        self.rows = self.padding.next_limit(size)
        self.retry_at = self.clock() + self.retry_after_s

    def learn(self, largest_run: int, too_many: int | None, row_too_large: bool, ids: Callable[[], str]) -> None:
        """Move to what one group has shown.

        largest_run: rows of the largest call that succeeded. too_many: rows of the smallest call of several rows that ran out
        of memory. row_too_large: whether a row ran out of memory although it was alone. ids(): whose rows, for the log.
        """
        if too_many is not None:
            trial_failed = too_many > self.rows  # up to the ceiling everything fits
            self.retry_after_s = min(2 * self.retry_after_s, LONGEST_RETRY_S) if trial_failed else RETRY_AFTER_S
            self.retry_at = self.clock() + self.retry_after_s
            # A guilty row may have cut the pieces smaller than memory did.
            ceiling = max(largest_run, self.padding.next_limit(too_many))
            # A row that does not fit even alone says nothing about how many of the others fit.
            if largest_run and ceiling < self.rows and not trial_failed and not row_too_large:
                self.rows = ceiling
                logger.warning("requests %s: out of memory: from now on at most %d rows at once", ids(), ceiling)
        elif largest_run > self.rows:
            self.rows = largest_run
            self.retry_at = self.clock() + self.retry_after_s
            logger.info("%d rows at once fit again", largest_run)
