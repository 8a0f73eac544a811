"""Find the rows that make a batch fail, and answer all the others.

A failing group is cut in halves until the guilty rows stand alone: about 2k*log2(n/k) calls for k guilty ones among n.
Out of memory is nobody's guilt: the group is run in smaller pieces, and the size that worked is kept as a ceiling.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.worker.errors import ModelFault, OutOfMemory, SlotError, Unavailable
from slotwise.worker.padding import Padding

logger = logging.getLogger(__name__)

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
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "out of memory" in str(error).lower()


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
    ) -> None:
        self.attempt = attempt
        self.padding = padding
        self.alive = alive
        self.release = release
        self.ceiling = padding.max_rows

    def run(self, items: Sequence[Any], stop_at: float = float("inf"), tally: Tally | None = None) -> list[Any]:
        """One output or SlotError an item, in order. Nothing is started after `stop_at` (time.monotonic(), seconds).

        Raises EngineDead when a failure turns out to be nobody's.
        """
        tally = tally if tally is not None else Tally()
        answers: list[Any] = [Unavailable("the batch could not be decided in time")] * len(items)
        worked, too_big, misfit, checked = 0, False, False, False
        # a stack of pieces [start, stop), each with the most rows of it that may run at once
        work = [(0, len(items), self.ceiling)] if items else []
        while work and time.monotonic() < stop_at:
            start, stop, limit = work.pop()
            if stop - start > limit:
                work += [(start + limit, stop, limit), (start, start + limit, limit)]
                continue
            size = self.padding.size(stop - start, limit)
            tally.rows, tally.padding = tally.rows + size, tally.padding + size - (stop - start)
            try:
                answers[start:stop] = self.attempt(list(items[start:stop]), size)
                worked = max(worked, size)
                continue
            except Exception as caught:
                error = caught
            self.release()
            memory = is_out_of_memory(error)
            alone = size == 1 if memory else stop - start == 1
            if not checked and (alone or not memory):
                self._check_alive(error)
                checked = True
            if alone:
                answers[start] = _verdict(error, memory)
                misfit = misfit or memory
                continue
            tally.cuts += 1
            too_big = too_big or memory
            half = self.padding.next_limit(size) if memory else (stop - start + 1) // 2
            work.append((start, stop, half))
        if too_big and worked and not misfit:  # a row that does not fit alone says nothing about the others
            self.ceiling = min(self.ceiling, worked)
            logger.warning("out of memory: from now on at most %d rows at once", self.ceiling)
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
                continue
            if isinstance(answer, SlotError):
                raise ValueError(f"the warm-up input fails: {answer.message}")

    def _check_alive(self, error: BaseException) -> None:
        logger.warning("a group of rows failed: %s", type(error).__name__, exc_info=error)
        if not self.alive():
            raise EngineDead("the warm-up input fails as well") from error


def _verdict(error: BaseException, memory: bool) -> SlotError:
    """The answer to the one row that failed alone."""
    if memory:
        return OutOfMemory("this input alone does not fit into the memory of the model's device")
    if isinstance(error, SlotError):
        return error
    return ModelFault("the model failed on this input")
