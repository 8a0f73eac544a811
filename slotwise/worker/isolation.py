"""Find the rows that make a batch fail, and give all other rows their outputs.

A group that fails is cut in halves until each guilty row stands alone. With k guilty rows among n rows that takes at most
about 2k*(log2(n/k) + 1) calls of the model.

Out of memory is the fault of no row. The group is then run in smaller pieces, and the size that fits becomes the ceiling of
later groups. When no call has run out of memory for RETRY_AFTER_S, the next larger size is tried once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.worker.padding import Padding, ladder
from slotwise.worker.slot_errors import ModelFault, OutOfMemory, SlotError, Unavailable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 60.0  # without an out-of-memory; then a size above the ceiling is tried
LONGEST_RETRY_S = 3600.0  # each trial that fails doubles the wait, up to this
NOT_RUN = Unavailable("there was no time left to run this row")

Attempt = Callable[[list[Any], int], list[Any]]


class EngineDead(Exception):
    """Even the warm-up input fails: no row is to blame, and no later batch will do better."""


@dataclass
class Tally:
    """What one batch cost: rows that the model ran, padding among them, and how often a group was cut."""

    rows: int = 0
    padding: int = 0
    cuts: int = 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is MemoryError or a device's own out-of-memory error, known by its name or message."""
    names = {kind.__name__ for kind in type(error).__mro__}
    try:
        return bool(names & {"MemoryError", "OutOfMemoryError"}) or "out of memory" in str(error).lower()
    except Exception:  # an error that cannot be turned into text
        return False


class Isolation:
    """Runs lists of items through the model, so that a row that fails costs no other row its output.

    attempt(items, size): collate the items, pad them to `size` rows, run the model once, and return one output (or
    SlotError) an item; it may raise anything. alive(): whether the warm-up input still runs. release(): free what a failed
    call holds. clock: seconds that never go back.

    ceiling: the most rows at once that are believed to fit into memory.
    """

    def __init__(
        self,
        attempt: Attempt,
        padding: Padding,
        alive: Callable[[], bool] = lambda: True,
        release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempt = attempt
        self.padding = padding
        self.alive = alive
        self.release = release
        self.clock = clock
        self.ceiling = padding.max_rows
        self.retry_after_s = RETRY_AFTER_S
        self.retry_at = 0.0  # on `clock`: when a size above the ceiling may be tried

    def run(
        self,
        items: Sequence[Any],
        stop_at: float = float("inf"),
        tally: Tally | None = None,
        ids: Callable[[], str] = lambda: "",
    ) -> list[Any]:
        """Run the model on these items: one output or SlotError an item, in order.

        stop_at: a time on `clock`. No call is started after that, and items that were not run get Unavailable.
        ids(): the ids of the requests that sent the items, for the log.
        Raises EngineDead where the warm-up input fails as well.
        """
        tally = tally if tally is not None else Tally()
        outputs: list[Any] = [NOT_RUN] * len(items)
        largest_run = 0  # rows of the largest call that succeeded
        too_many: int | None = None  # rows of the smallest call of several rows that ran out of memory
        row_too_large = False  # whether a row ran out of memory although it was alone
        engine_checked = False
        # The pieces still to run, the next one last: items[start:stop], at most `limit` items at once. Padding may add rows.
        pieces = [(0, len(items), self._limit(len(items)))] if items else []
        while pieces and self.clock() < stop_at:
            start, stop, limit = pieces.pop()
            count = stop - start
            if count > limit:
                pieces.append((start + limit, stop, limit))
                pieces.append((start, start + limit, limit))
                continue
            size = self.padding.size(count, limit)
            tally.rows += size
            tally.padding += size - count
            error = self._try(list(items[start:stop]), size, outputs, start)
            if error is None:
                largest_run = max(largest_run, size)
                continue
            self.release()
            no_memory = is_out_of_memory(error)
            smaller = no_memory and self.padding.shrinks
            alone = (size if smaller else count) == 1  # padding rows take memory, but they cannot be guilty
            if not engine_checked and (alone or not no_memory):  # several rows without memory say nothing about the engine
                self._check_alive(error, ids())
                engine_checked = True
            if alone:
                outputs[start] = _row_error(error, no_memory)
                row_too_large = row_too_large or no_memory
                continue
            tally.cuts += 1
            if smaller:
                too_many = min(size, too_many or size)
            pieces.append((start, stop, self.padding.next_limit(size) if smaller else (count + 1) // 2))
        self._move_ceiling(largest_run, too_many, row_too_large, ids)
        return outputs

    def prepare(self, item: Any, runs: int = 1) -> None:
        """Warm up: run one good item at each of the padding's sizes, the largest first, `runs` times each.

        A size that does not fit into memory lowers the ceiling. Raises what any other failure raises, because such an
        engine cannot serve.
        """
        for size in self.padding.sizes():
            try:
                output = [self.attempt([item], size)[0] for _ in range(runs)][-1]
            except Exception as error:
                if size == 1 or not is_out_of_memory(error) or not self.padding.shrinks:
                    raise
                self.release()
                self.ceiling = self.padding.next_limit(size)
                self.retry_at = self.clock() + self.retry_after_s
                continue
            if isinstance(output, SlotError):
                raise ValueError(f"the warm-up input fails: {output.message}")

    def _limit(self, rows: int) -> int:
        """The most rows that may run at once: the ceiling, or one step more when memory has been enough for a while."""
        if self.ceiling >= min(rows, self.padding.max_rows) or self.clock() < self.retry_at:
            return self.ceiling
        return next(rung for rung in reversed(ladder(self.padding.max_rows)) if rung > self.ceiling)

    def _move_ceiling(self, largest_run: int, too_many: int | None, row_too_large: bool, ids: Callable[[], str]) -> None:
        """Move the ceiling to what this group has shown."""
        if too_many is not None:
            trial_failed = too_many > self.ceiling  # up to the ceiling everything fits
            self.retry_after_s = min(2 * self.retry_after_s, LONGEST_RETRY_S) if trial_failed else RETRY_AFTER_S
            self.retry_at = self.clock() + self.retry_after_s
            # A guilty row may have cut the pieces smaller than memory did.
            ceiling = max(largest_run, self.padding.next_limit(too_many))
            # A row that does not fit even alone says nothing about how many of the others fit.
            if largest_run and ceiling < self.ceiling and not trial_failed and not row_too_large:
                self.ceiling = ceiling
                logger.warning("requests %s: out of memory: from now on at most %d rows at once", ids(), ceiling)
        elif largest_run > self.ceiling:
            self.ceiling = largest_run
            self.retry_at = self.clock() + self.retry_after_s
            logger.info("%d rows at once fit again", largest_run)

    def _try(self, items: list[Any], size: int, outputs: list[Any], start: int) -> BaseException | None:
        """Run the model once. Put its outputs in their places, from `start` on, or return what was raised."""
        try:
            outputs[start : start + len(items)] = self.attempt(items, size)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's sys.exit() is no reason to end the worker
            return error
        return None

    def _check_alive(self, error: BaseException, ids: str) -> None:
        """Log the failure, and raise EngineDead where the warm-up input fails as well."""
        logger.warning("requests %s: a group of rows failed: %s", ids, type(error).__name__, exc_info=error)
        if not self.alive():
            raise EngineDead("the warm-up input fails as well") from error


def _row_error(error: BaseException, no_memory: bool) -> SlotError:
    """What the one row that failed alone is answered with."""
    if no_memory:
        return OutOfMemory("this input alone does not fit into the memory of the model's device")
    if isinstance(error, SlotError):
        return error
    return ModelFault("the model failed on this input")
