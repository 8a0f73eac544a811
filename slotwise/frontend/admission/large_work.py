"""Read and make what is large in threads, few at once, so that everybody else is answered meanwhile; and measure that it is so.

A thread helps only where Python can switch: a single call of C code for megabytes stops everybody wherever it runs. So what is
given to LargeWork is written as many small calls (protocols/json_pieces.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 32 * 1024  # less is done at once: a thread costs more
AT_ONCE = 2
BEAT_S = 0.05
WINDOW_S = 30.0


class LargeWork:
    """A few threads for what is large, and turns at them."""

    def __init__(self) -> None:
        self._threads, self._turns = ThreadPoolExecutor(AT_ONCE, "large"), asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Within, few others work on what is large: take the memory for it here. What is small has no turn to wait for."""
        if size <= LARGE_BYTES:
            yield
            return
        async with self._turns:
            yield

    async def run(self, size: int, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What `work` returns for something of `size` bytes; may raise what it raises."""
        if size <= LARGE_BYTES:
            return work(*given, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*given, **named))

    def close(self) -> None:
        """Take nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LoopBlocks:
    """How long the event loop stood still at most, in the last minute or so: so long everybody waited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window_at = clock()
        self._now_s = self._before_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest block in this window and the one before."""
        return max(self._now_s, self._before_s)

    def beat(self, late_s: float) -> None:
        """Something was done that much later than it was due."""
        now = self._clock()
        if now - self._window_at > WINDOW_S:
            self._window_at, self._before_s, self._now_s = now, self._now_s, 0.0
        self._now_s = max(self._now_s, late_s)

    async def watch(self) -> None:
        """Measure for ever."""
        while True:
            due = self._clock() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.beat(max(self._clock() - due, 0.0))
