"""The requests to one model: how many at once, whether they may be sent twice, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.backends.request_way import BatchWork
from slotwise.frontend.admission.fair_shares import ConcurrencyLimit

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

UNKNOWN_BATCH = 16  # of a model that the server's list does not hold
FEW = 8  # wait here, where the server has senders take turns: a sender with less takes the place of one with most


@dataclass
class Outcomes:
    """What became of one model's requests, since this process first saw it. A record of a request of many is a request here.

    batches: each answer is its share of its batch, whose other requests another front end may have sent. last_s: Unix time.
    """

    good: int = 0
    failed: int = 0
    batches: float = 0.0
    good_s: float = 0.0
    failed_s: float = 0.0
    decode_s: float = 0.0
    inference_s: float = 0.0
    last_s: float = 0.0

    def add(self, status: int, seconds: float, work: BatchWork) -> None:
        """Count one answer. seconds: from when its body was read; 0 where it was never sent."""
        self.last_s = time.time()
        if work.batch_size > 0:
            self.batches += 1 / work.batch_size
        if status >= 400:
            self.failed += 1
            self.failed_s += seconds
        else:
            self.good += 1
            self.good_s += seconds
            self.decode_s += work.decode_ms / 1000
            self.inference_s += work.inference_ms / 1000


class ModelTraffic:
    """The traffic of one model. `in_flight` and `queued` are what the gateway's options say of them.

    repeatable: whether a second copy of a request does no harm. takes_turns: whether the backend lets senders take turns, and
    knows who can still be answered in time. Then requests wait in its queue, unless `in_flight` says how many may be there;
    here wait no more than FEW, which may give way to other senders. wait_s: as in ConcurrencyLimit. waiting: how many wait in
    the backend's queue. records: so many of one request are at the backend at most; 0: as many as have a place.
    """

    def __init__(
        self,
        in_flight: int,
        queued: int,
        repeatable: bool,
        takes_turns: bool = False,
        wait_s: Callable[[int], float] = lambda count: 0.0,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._waiting = waiting
        self._in_flight, self._queued, self._lends = in_flight, queued, takes_turns and not in_flight
        self.limit = ConcurrencyLimit(*self._sizes(UNKNOWN_BATCH), lends=self._lends, wait_s=wait_s)
        self.repeatable = repeatable
        self.outcomes = Outcomes()
        self.answered = False  # a request, since the backend was looked at
        self.chosen = 0  # requests that this model itself is to answer, not an archive that a roll-out tries in its place

    def fit(self, model: LiveModel) -> None:
        """Resize the limit to the model's batches and workers."""
        self.limit.resize(*self._sizes(max(len(model.workers), 1) * model.batch_size, model.queue_size))

    def _sizes(self, batch: int, room: int = 0) -> tuple[int, int]:
        """Enough at the server for the next batch to be ready when one is done; one more waits here, or there.

        room: so many may wait there; 0: nobody knows. A few more than these go there, where somebody gives way to them; but
        not where more are to wait than there is room for.
        """
        there, here = self._in_flight or max(2 * batch, 8), self._queued if self._queued >= 0 else max(batch, 4)
        if not self._lends:
            self.records = 0
            return there, here
        room = room or there + here
        self.records = min(there, room)  # of an idle model they come in one turn of the loop, before any of them goes
        places = min(there + max(0, here - FEW), max(there, room) if here > room else room + batch + FEW)
        return places, there + here - places

    @property
    def in_flight(self) -> int:
        """How many are at the server, and do not wait there."""
        return self.limit.running - self._waiting_there

    @property
    def queued(self) -> int:
        """How many wait, here or there."""
        return self.limit.queued + self._waiting_there

    @property
    def _waiting_there(self) -> int:
        return min(self.limit.running, self._waiting())  # others may have come another way

    def shown(self) -> dict[str, int]:
        """What the page shows of it."""
        limit, there = self.limit, self.records or self.limit.in_flight_max
        return {
            "in_flight": self.in_flight,
            "queued": self.queued,
            "chosen": self.chosen,
            "in_flight_max": there,
            "queue_max": limit.in_flight_max - there + limit.queue_max,
        }
