"""Find the rows that make a batch fail, and answer all the others.

A failing group is cut in halves until the guilty rows stand alone: about 2k*log2(n/k) calls for k guilty ones among n.
Out of memory is nobody's guilt: the group is run in smaller pieces, and the size that worked is kept as a ceiling. After
a quiet while one step more is tried.
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

QUIET_S = 60.0  # without memory trouble, before a larger size is tried again
LONGEST_QUIET_S = 3600.0  # each failed trial doubles the wait, up to this

Attempt = Callable[[list[Any], int], list[Any]]


class EngineDead(Exception):
    """Even the warm-up input fails: no row is to blame, and no later batch will do better."""


@dataclass
class Tally:
    """What one batch cost: rows that the model ran, padding among them, and how often a group had to be cut."""

    rows: int = 0
    padding: int = 0
    cuts: int = 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is MemoryError or a device's own out-of-memory error, told by its name or message."""
    names = {kind.__name__ for kind in type(error).__mro__}
    try:
        return bool(names & {"MemoryError", "OutOfMemoryError"}) or "out of memory" in str(error).lower()
    except Exception:
        return False


class Isolation:
    """Runs lists of items through `attempt`, whatever some of them do to it.

    attempt(items, size): collate the items, pad them to `size` rows, run the model once, return one output (or SlotError)
    an item; it may raise anything. alive(): whether the warm-up input still runs. release(): free what a failed call holds.
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
        self.quiet_s = QUIET_S
        self.probe_at = 0.0  # when a size above the ceiling may be tried

    def run(
        self, items: Sequence[Any], stop_at: float = float("inf"), tally: Tally | None = None, whose: Callable[[], str] = str
    ) -> list[Any]:
        """One output or SlotError an item, in order. Nothing is started after `stop_at` (the clock's seconds).

        whose(): the ids of the requests that the items are of, for the log. Raises EngineDead when a failure turns out to be
        nobody's.
        """
        tally = tally if tally is not None else Tally()
        answers: list[Any] = [Unavailable("the batch could not be decided in time")] * len(items)
        worked, too_big, misfit, checked = 0, False, False, False
        # a stack of pieces [start, stop), each with the most rows of it that may run at once
        work = [(0, len(items), self._limit(len(items)))] if items else []
        while work and self.clock() < stop_at:
            start, stop, limit = work.pop()
            if stop - start > limit:
                work += [(start + limit, stop, limit), (start, start + limit, limit)]
                continue
            size = self.padding.size(stop - start, limit)
            tally.rows, tally.padding = tally.rows + size, tally.padding + size - (stop - start)
            error = self._try(list(items[start:stop]), size, answers, start)
            if error is None:
                worked = max(worked, size)
                continue
            self.release()
            memory = is_out_of_memory(error)
            alone = size == 1 if memory else stop - start == 1
            if not checked and (alone or not memory):
                self._check_alive(error, whose())
                checked = True
            if alone:
                answers[start] = _verdict(error, memory)
                misfit = misfit or memory
                continue
            tally.cuts += 1
            too_big = too_big or memory
            half = self.padding.next_limit(size) if memory else (stop - start + 1) // 2
            work.append((start, stop, half))
        self._remember(worked, too_big, misfit, whose)
        return answers

    def prepare(self, item: Any, runs: int = 1) -> None:
        """Run one good item so often at every size that will be served, largest first; what does not fit lowers the ceiling.

        Raises what a size that fits raises: such an engine cannot serve.
        """
        for size in self.padding.sizes():
            try:
                answer = [self.attempt([item], size)[0] for _ in range(runs)][-1]
            except Exception as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
                self.release()
                self.ceiling = self.padding.next_limit(size)
                self.probe_at = self.clock() + self.quiet_s
                continue
            if isinstance(answer, SlotError):
                raise ValueError(f"the warm-up input fails: {answer.message}")

    def _limit(self, rows: int) -> int:
        """The most rows at once: the ceiling, or after a quiet while one step more."""
        if self.ceiling >= min(rows, self.padding.max_rows) or self.clock() < self.probe_at:
            return self.ceiling
        return next(rung for rung in reversed(ladder(self.padding.max_rows)) if rung > self.ceiling)

    def _remember(self, worked: int, too_big: bool, misfit: bool, whose: Callable[[], str]) -> None:
        """Move the ceiling to what this group has shown."""
        if too_big:
            probed = worked == self.ceiling < self.padding.max_rows
            self.quiet_s = min(2 * self.quiet_s, LONGEST_QUIET_S) if probed else QUIET_S
            self.probe_at = self.clock() + self.quiet_s
            if worked and not misfit and worked < self.ceiling:  # a row that fits nowhere says nothing about the others
                self.ceiling = worked
                logger.warning("requests %s: out of memory: from now on at most %d rows at once", whose(), worked)
        elif worked > self.ceiling:
            self.ceiling, self.probe_at = worked, self.clock() + self.quiet_s
            logger.info("%d rows at once fit again", worked)

    def _try(self, items: list[Any], size: int, answers: list[Any], start: int) -> BaseException | None:
        """Put the outputs of these items where they belong, or say what was raised."""
        try:
            answers[start : start + len(items)] = self.attempt(items, size)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's sys.exit() is no reason to end the worker
            return error
        return None

    def _check_alive(self, error: BaseException, whose: str) -> None:
        logger.warning("requests %s: a group of rows failed: %s", whose, type(error).__name__, exc_info=error)
        if not self.alive():
            raise EngineDead("the warm-up input fails as well") from error


def _verdict(error: BaseException, memory: bool) -> SlotError:
    """The answer to the one row that failed alone."""
    if memory:
        return OutOfMemory("this input alone does not fit into the memory of the model's device")
    if isinstance(error, SlotError):
        return error
    return ModelFault("the model failed on this input")
