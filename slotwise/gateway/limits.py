"""A concurrency limit with a short queue for each model, and a budget for the bodies held in memory.

More requests than a server can batch do not make it faster, they only wait inside it. So at most `in_flight_max`
requests of a model are at the server, at most `queue_max` wait here, and the next is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from slotwise.gateway.replies import Refused

Receive = Callable[[], Awaitable[Any]]


class ClientGone(Exception):
    """The client closed its connection while its request waited."""


class ConcurrencyLimit:
    """One model's places: `running` at the server, `queued` here. Places are handed on in order of arrival."""

    def __init__(self, in_flight_max: int, queue_max: int) -> None:
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self.running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        """How many requests wait for a place."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a request that came now would be refused."""
        return self.running >= self.in_flight_max and len(self._waiting) >= self.queue_max

    def refuse_if_full(self) -> None:
        """Raise the 429 that a request would get now."""
        if self.full:
            raise Refused(429, "the queue of this model is full, try again later", retry_after_s=1)

    async def enter(self, timeout_s: float, receive: Receive) -> None:
        """Take a place, or wait for one at most `timeout_s`. Raises Refused (429, 504) or ClientGone.

        `receive` is the request's ASGI channel, its body read: it wakes up only when the client is gone.
        """
        if self.running < self.in_flight_max and not self._waiting:
            self.running += 1
            return
        self.refuse_if_full()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone: asyncio.Future[Any] = asyncio.ensure_future(receive())
        self._waiting.append(place)
        try:
            await asyncio.wait({place, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not place.done():
                raise ClientGone if gone.done() else Refused(504, "the deadline passed in the gateway's queue")
        except BaseException:
            self._give_up(place)
            raise
        finally:
            gone.cancel()

    def _give_up(self, place: asyncio.Future[None]) -> None:
        """Leave the queue; a place that arrived in the same moment goes to the next."""
        if place.done():
            self.leave()
        else:
            place.cancel()
            self._waiting.remove(place)

    def leave(self) -> None:
        """Give a place back; who waits longest gets it."""
        self.running -= 1
        self._wake()

    def resize(self, in_flight_max: int, queue_max: int) -> None:
        """New limits, after a scale or a swap; whoever fits now is let in."""
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.running < self.in_flight_max:
            self._waiting.popleft().set_result(None)
            self.running += 1


class MemoryBudget:
    """The bytes of all bodies in memory, bounded by `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.now_bytes = max_bytes, 0

    def take(self, count: int) -> None:
        """Account for `count` more bytes, or refuse (429) when all bodies together would exceed the budget."""
        if self.now_bytes + count > self.max_bytes:
            raise Refused(429, "too many large requests at once, try again later", retry_after_s=1, close=True)
        self.now_bytes += count

    def give(self, count: int) -> None:
        """Bodies of `count` bytes are gone."""
        self.now_bytes -= count
