"""An event loop whose clock jumps to what is next, and which runs what is ready in an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeft(Exception):
    """Nothing is ready and nothing is scheduled, and yet the history is not over: somebody waits for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """No second of it takes a second. It touches asyncio's own lists of what is ready and what is scheduled."""

    def __init__(self, seed: int) -> None:
        self._now, self._random = 0.0, random.Random(seed)
        super().__init__()

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready:
            if not scheduled:
                raise NothingLeft
            self._now = max(self._now, scheduled[0].when())
        ready = list(self._ready)
        self._random.shuffle(ready)
        self._ready = deque(ready)
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, T], seed: int) -> T:
    """What `main` returns, in virtual time."""
    loop = VirtualLoop(seed)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def problems_of(history: Coroutine[Any, Any, list[str]], seed: int) -> list[str]:
    """What did not hold in a history, as it says itself; that somebody waits for ever, too."""
    try:
        return run(history, seed)
    except NothingLeft:
        return ["somebody waits for ever"]
