"""Limit how many requests of a model are at the server and wait here, and give the places out in turn.

More requests than a server can batch do not make it faster, they only wait inside it. So at most `in_flight_max`
requests of a model are at the server, at most `queue_max` wait here, and the next is refused at once. A request of several
records waits as one: it needs a place for each, takes them as they come, and each is a request to the server.

A place that comes free goes to the sender (a key, else an address) that has the fewest for its weight, of those with the
highest priority, but for one in so many (Priorities); its requests take turns. Where the queue is full, the sender with most
in it gives way to one with less: so nobody can fill it for the others. And the first request of a sender waits though the
queue is full, of up to SENDERS: who sends one at a time is not refused because others are many.

Where the server has senders take turns itself, the first request of a sender goes on at once though all places are taken, of up
to SENDERS: else it would wait here for a batch that it could have been in.

No request waits for its first place for more than half of its time: the other half may be needed for the answer, and for
another try where a worker dies. Where the next of the same sender has waited for half of a new one's time, that is refused at
once, too.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotwise.backends.interface import Refused
from slotwise.backends.priorities import Priorities
from slotwise.frontend.admission.limits import ClientGone, Receive

LONGEST_WAIT = 0.5  # of a request's time
SENDERS = 64  # so many may have a request in the queue, also where that has fewer places


@dataclass(eq=False)
class Turn:
    """What one request has here. started: it has had a place.

    place: while it waits for one, since that second of the loop: done once it has it (True), or has to give way (False).
    """

    sender: str
    weight: int = 1
    priority: int = 0
    started: bool = False
    since: float = 0.0
    place: asyncio.Future[bool] | None = None


class ConcurrencyLimit:
    """The places that one model has at the server (`running`), and the queue for them (`queued`: how many requests wait).

    lends: whether a sender that has no place may have one more. wait_s(count): how long so many requests take; 0: nobody knows.
    """

    def __init__(
        self, in_flight_max: int, queue_max: int, *, lends: bool = False, wait_s: Callable[[int], float] = lambda count: 0.0
    ) -> None:
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self.lends, self.wait_s = lends, wait_s
        self.running = self.queued = 0
        self._running_of: dict[str, int] = {}  # by sender; without those that have none
        self._waiting: dict[str, deque[Turn]] = {}  # by sender, in turn; without those that have none
        self._priorities = Priorities()

    @property
    def full(self) -> bool:
        """Whether a request that comes now is refused, unless it is its sender's first, or another gives way to it."""
        return self.running >= self.in_flight_max and self.queued >= self.queue_max

    def refuse_if_full(self, sender: str, weight: int = 1, priority: int = 0) -> None:
        """Raise Refused (429) where a request of this sender that comes now is refused."""
        if not self.full or self._lent(sender):
            return
        may_wait = self.queue_max and sender not in self._waiting and len(self._waiting) < SENDERS
        if not may_wait and self._with_most(Turn(sender, weight, priority)) is None:
            raise self._full()

    def admit(self, sender: str, timeout_s: float, weight: int = 1, priority: int = 0) -> Turn:
        """The turn of a new request. Raises Refused (429); where it does not, the request gets in if it enters at once.

        timeout_s: the request's time.
        """
        self.refuse_if_full(sender, weight, priority)
        if line := self._waiting.get(sender):
            waited_s = asyncio.get_running_loop().time() - line[0].since
            if waited_s > LONGEST_WAIT * timeout_s:
                raise _too_slow(waited_s)
        return Turn(sender, weight, priority)

    async def enter(self, turn: Turn, timeout_s: float, receive: Receive) -> None:
        """Take a place, or wait for one. Raises Refused (429; 504 where it was not the first) or ClientGone.

        timeout_s: what is left of the request's time, of which it waits for LONGEST_WAIT at most for the first place.
        receive: its ASGI channel; its body is read already, so it returns only when the client is gone.
        """
        if (self.running < self.in_flight_max and not self._waiting) or self._lent(turn.sender):
            self._take(turn)
            return
        patience_s = timeout_s if turn.started else LONGEST_WAIT * timeout_s
        place = self._join(turn)
        gone: asyncio.Future[Any] = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({place, gone}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not place.done():
                raise ClientGone if gone.done() else _too_late() if turn.started else _too_slow(patience_s)
            if not place.result():
                raise self._full()
        except BaseException:
            self._leave_queue(turn, place)
            raise
        finally:
            gone.cancel()

    def leave(self, turn: Turn) -> None:
        """Give a place back; the next in turn gets it."""
        self.running -= 1
        self._running_of[turn.sender] -= 1
        if not self._running_of[turn.sender]:
            del self._running_of[turn.sender]
        self._hand_on_places()

    def resize(self, in_flight_max: int, queue_max: int) -> None:
        """Set new limits, after a scale or a swap; what fits now is let in."""
        self.in_flight_max, self.queue_max = in_flight_max, queue_max
        self._hand_on_places()

    def _take(self, turn: Turn) -> None:
        turn.started = True
        self.running += 1
        self._running_of[turn.sender] = self._running_of.get(turn.sender, 0) + 1

    def _join(self, turn: Turn) -> asyncio.Future[bool]:
        """Wait behind the sender's other requests. One that has started already needs no room in the queue."""
        if not turn.started and self.queued >= self.queue_max and (most := self._with_most(turn)):
            line = self._waiting[most]
            last = next((each for each in reversed(line) if not each.started), line[-1])
            self._remove(last)
            if last.place:
                last.place.set_result(False)
        loop = asyncio.get_running_loop()
        turn.since, turn.place = loop.time(), loop.create_future()
        self._waiting.setdefault(turn.sender, deque()).append(turn)
        self.queued += 1
        return turn.place

    def _lent(self, sender: str) -> bool:
        """Whether a sender's request goes on though all places are taken."""
        return self.lends and sender not in self._running_of and len(self._running_of) < SENDERS

    def _with_most(self, turn: Turn) -> str | None:
        """Whose request gives way to that one: who has most in the queue for its weight, of those of the least priority."""

        def share(sender: str, more: int = 0) -> tuple[int, float]:
            line = self._waiting[sender]
            return -line[0].priority, (len(line) + more) / line[0].weight

        if not self._waiting:
            return None
        most = max(self._waiting, key=share)
        own = share(turn.sender, 1) if turn.sender in self._waiting else (-turn.priority, 1 / turn.weight)
        return most if share(most) > own else None

    def _remove(self, turn: Turn) -> None:
        line = self._waiting[turn.sender]
        line.remove(turn)
        if not line:
            del self._waiting[turn.sender]
        self.queued -= 1

    def _leave_queue(self, turn: Turn, place: asyncio.Future[bool]) -> None:
        """Leave the queue; a place that was given in the same moment goes to the next."""
        if not place.done():
            place.cancel()
            self._remove(turn)
        elif place.result():
            self.leave(turn)

    def _hand_on_places(self) -> None:
        while self._waiting:
            full = self.running >= self.in_flight_max
            sender = min((each for each in self._waiting if not full or self._lent(each)), key=self._claim, default=None)
            if sender is None:
                return
            waiting = {line[0].priority for line in self._waiting.values()}
            line = self._waiting.pop(sender)
            turn = line.popleft()
            self._priorities.gone(turn.priority, waiting)
            if line:
                self._waiting[sender] = line  # behind the others, where they have as few
            self.queued -= 1
            self._take(turn)
            if turn.place:
                turn.place.set_result(True)

    def _claim(self, sender: str) -> tuple[bool, int, float]:
        """Who has the least of it gets the next place."""
        turn = self._waiting[sender][0]
        in_turn = turn.priority == self._priorities.overdue
        return not in_turn, -turn.priority, self._running_of.get(sender, 0) / turn.weight

    def _full(self) -> Refused:
        after_s = max(1, math.ceil(self.wait_s(self.running + self.queued)))
        return Refused(429, "the queue of this model is full, try again later", after_s)


def _too_slow(waited_s: float) -> Refused:
    return Refused(429, "the queue of this model is too slow, try again later", retry_after_s=max(1, round(waited_s)))


def _too_late() -> Refused:
    return Refused(504, "the deadline passed before all records had their turn")
