"""Keep the streams that are open: their order, deadlines, readers that are slow, and what is sent of them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from slotwise.worker.answer import Refusal
from slotwise.worker.slot_errors import DeadlineExceeded, SlotError
from slotwise.worker.steps.outlet import Outlet
from slotwise.worker.steps.streams import SlowReader, Stream, StreamEnd, StreamEvent, StreamPiece, TurnLimits

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class OpenStream:
    """A stream that has not ended. arrival: its place in the order. held_at: since when nobody reads it, or None."""

    stream: Stream
    arrival: int
    outlet: Outlet
    held_at: float | None = None
    last_turn: int = 0

    @property
    def owner(self) -> Hashable:
        """The request that it belongs to."""
        return self.stream.id if self.stream.owner is None else self.stream.owner


Open = TypeVar("Open", bound=OpenStream)


def first_in_turn(waiting: Iterable[Open], served: Iterable[Open]) -> Open | None:
    """Who of those that wait is served next: of the owner that has the fewest streams among `served`, in order of arrival."""
    count = Counter(one.owner for one in served)
    return min(waiting, key=lambda one: (count[one.owner], one.arrival), default=None)


def longest_held(streams: Iterable[Open]) -> Open | None:
    """Who of these has been parked for the longest time; None where nobody is."""
    held = [(one.held_at, one.arrival, one) for one in streams if one.held_at is not None]
    return min(held, key=lambda entry: entry[:2])[2] if held else None


class StreamRunner(ABC, Generic[Open]):
    """What the runners have in common; see `Runner`. clock: seconds that never go back."""

    def __init__(self, limits: TurnLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock = limits, clock
        self.dead = False
        self.open: dict[Hashable, Open] = {}  # in order of arrival
        self.turns = self.arrivals = 0
        self.events: list[StreamEvent] = []

    @abstractmethod
    def _opened(self, stream: Stream, arrival: int) -> Open: ...

    @abstractmethod
    def _take_turn(self, stop_at: float) -> None: ...

    @abstractmethod
    def _left(self, one: Open) -> None:
        """A stream has ended or was cancelled: free what it has."""

    @abstractmethod
    def _parked(self) -> None:
        """One stream more is parked: keep the bound."""

    def offer(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            if stream.id in self.open:
                raise ValueError(f"a stream with the id {stream.id!r} is open already")
            self.arrivals += 1
            one = self._opened(stream, self.arrivals)
            self.open[stream.id] = one
            self._admit(one)

    def _admit(self, one: Open) -> None:
        """End a stream that can never be served."""

    def cancel(self, stream_id: Hashable) -> None:
        self.events = [event for event in self.events if event.id != stream_id]
        if (one := self.open.pop(stream_id, None)) is not None:
            self._left(one)

    def hold(self, stream_id: Hashable) -> None:
        one = self.open.get(stream_id)
        if one is None or one.held_at is not None:
            return
        if self.limits.slow_readers == "end":
            self._end(one, SlowReader("the stream was not read, and has ended"))
        else:
            one.held_at = self.clock()
            self._parked()

    def go_on(self, stream_id: Hashable) -> None:
        if (one := self.open.get(stream_id)) is not None:
            one.held_at = None

    @property
    def busy(self) -> bool:
        return bool(self.events) or (not self.dead and any(one.held_at is None for one in self.open.values()))

    def turn(self) -> list[StreamEvent]:
        if not self.dead:
            self.turns += 1
            now = self.clock()
            self._end_overdue(now)
            self._take_turn(now + self.limits.turn_s)
        events, self.events = self.events, []
        return events

    def _end_overdue(self, now: float) -> None:
        """End the streams whose deadline has passed, and those that nobody has read for too long."""
        for one in list(self.open.values()):
            if one.stream.deadline is not None and now > one.stream.deadline:
                self._end(one, DeadlineExceeded("the deadline passed before the answer was whole"))
            elif one.held_at is not None and now - one.held_at > self.limits.parked_s:
                self._end(one, SlowReader("the stream was not read for too long, and has ended"))

    def _put(self, one: Open, piece: object) -> bool:
        """Send a piece of a stream; False where that failed, and the stream has ended."""
        try:
            data = one.outlet.put(piece)
        except SlotError as error:
            self._end(one, error)
            return False
        if data is not None:
            self.events.append(StreamPiece(one.stream.id, data))
        return True

    def _end(self, one: Open, error: SlotError | Refusal | None = None) -> None:
        """End a stream, by its answer's end or an error."""
        if error is None:
            try:
                one.outlet.end()
            except SlotError as other:
                error = other
        refusal = Refusal.of(error) if isinstance(error, SlotError) else error
        if refusal is not None:
            logger.info("stream %s: %d %.200a", one.stream.id, refusal.status, refusal.body)
        del self.open[one.stream.id]
        self._left(one)
        self.events.append(StreamEnd(one.stream.id, refusal))
