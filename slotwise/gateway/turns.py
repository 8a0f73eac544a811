"""Limit how many requests of a model are at the server and wait here.

More requests than a server can batch do not make it faster, they only wait inside it. So at most `in_flight_max`
requests of a model are at the server, at most `queue_max` wait here, and the next is refused at once. None waits here for more
than half of its time: the other half may be needed for the answer, and for another try where a worker dies. Where the one at
the head has waited for half of a new one's time, that is refused at once, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from slotwise.gateway.limits import ClientGone, Receive
from slotwise.gateway.replies import Refused

LONGEST_WAIT = 0.5  # of a request's time


class QueuedRequest(NamedTuple):
    """A request in the queue since this second of the loop; `place` is done once it has one."""

    since: float
    place: asyncio.Future[None]


class ConcurrencyLimit:
    """The places that one model has at the server (`running`), and the queue for them. First come, first served."""

    def __init__(self, in_flight_max: int, queue_max: int) -> None:
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self.running = 0
        self._waiting: deque[QueuedRequest] = deque()

    @property
    def queued(self) -> int:
        """How many requests wait for a place."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a request that comes now is refused."""
        return self.running >= self.in_flight_max and len(self._waiting) >= self.queue_max

    def refuse_if_full(self) -> None:
        """Raise Refused (429) where a request that comes now is refused."""
        if self.full:
            raise Refused(429, "the queue of this model is full, try again later", retry_after_s=1)

    async def enter(self, timeout_s: float, receive: Receive) -> None:
        """Take a place, or wait for one. Raises Refused (429) or ClientGone.

        timeout_s: the request's time, of which it waits for LONGEST_WAIT at most. receive: its ASGI channel; its body is read
        already, so it returns only when the client is gone.
        """
        if self.running < self.in_flight_max and not self._waiting:
            self.running += 1
            return
        self.refuse_if_full()
        loop, patience_s = asyncio.get_running_loop(), LONGEST_WAIT * timeout_s
        waited_s = loop.time() - self._waiting[0].since if self._waiting else 0.0
        if waited_s > patience_s:
            raise _too_slow(waited_s)
        waiting = QueuedRequest(loop.time(), loop.create_future())
        gone: asyncio.Future[Any] = asyncio.ensure_future(receive())
        self._waiting.append(waiting)
        try:
            await asyncio.wait({waiting.place, gone}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.place.done():
                raise ClientGone if gone.done() else _too_slow(patience_s)
        except BaseException:
            self._leave_queue(waiting)
            raise
        finally:
            gone.cancel()

    def _leave_queue(self, waiting: QueuedRequest) -> None:
        """Leave the queue; a place that was given in the same moment goes to the next."""
        if waiting.place.done():
            self.leave()
        else:
            waiting.place.cancel()
            self._waiting.remove(waiting)

    def leave(self) -> None:
        """Give a place back; the request that waits longest gets it."""
        self.running -= 1
        self._hand_on_places()

    def resize(self, in_flight_max: int, queue_max: int) -> None:
        """Set new limits, after a scale or a swap; what fits now is let in."""
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self._hand_on_places()

    def _hand_on_places(self) -> None:
        while self._waiting and self.running < self.in_flight_max:
            self._waiting.popleft().place.set_result(None)
            self.running += 1


def _too_slow(waited_s: float) -> Refused:
    return Refused(429, "the queue of this model is too slow, try again later", retry_after_s=max(1, round(waited_s)))
