"""The loop of steps with one bug each, as they have been made in such code: the histories must find every one."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Any

from slotwise.worker.answer import Refusal
from slotwise.worker.batch import NOT_RUN, Row
from slotwise.worker.isolation import EngineDead
from slotwise.worker.slot_errors import ModelFault
from slotwise.worker.steps.decoded_streams import DecodedStream
from slotwise.worker.steps.outlet import Outlet
from slotwise.worker.steps.slot_table import SlotTable
from slotwise.worker.steps.step_engine import StepRow, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream, StreamPiece

FAULT = Refusal.of(ModelFault("the model failed on this input"))


class EverybodyEnds(StepLoop):
    """A step that fails ends all of its rows, as in other servers."""

    def _take(self, group: list[DecodedStream], rows: list[Row], beside: int) -> None:
        if any(row.error not in (None, NOT_RUN) for row in rows):
            for row in rows:
                row.refuse(FAULT)
        super()._take(group, rows, beside)


class OutputsMoveUp(StepLoop):
    """The outputs that there are go to the first streams, whoever failed."""

    def _take(self, group: list[DecodedStream], rows: list[Row], beside: int) -> None:
        super()._take(group, sorted(rows, key=lambda row: row.error is not None), beside)


class AdvancesAgain(StepLoop):
    """Where a cache is made anew, the author is asked again."""

    def _stepped(self, one: DecodedStream, output: object) -> None:
        one.last_turn = self.turns
        one.written += 1
        self._advance(one, output)


class CacheIsKept(StepLoop):
    """The slot is given to the next one, but the engine is not told."""

    def _left(self, one: DecodedStream) -> None:
        if one.slot is not None:
            self.slots.take_back(one.slot)
            one.slot = None


class LostForMemory(StepLoop):
    """Who does not fit into memory beside the others ends."""

    def _make_room(self, needy: DecodedStream, error: Refusal, beside: int) -> None:
        self._end(needy, error)


class AloneAfterwards(StepLoop):
    """Who did not fit beside others that have just ended is taken for one that fits nowhere."""

    def _make_room(self, needy: DecodedStream, error: Refusal, beside: int) -> None:
        super()._make_room(needy, error, len(self._holders()))


class HalfACache(StepLoop):
    """Who is put back goes on where it was, in a cache that is empty."""

    def _put_back(self, one: DecodedStream) -> None:
        written = one.written
        super()._put_back(one)
        one.written = written


class ReadersAllEnd(StepLoop):
    """Items that cannot be read together all end."""

    def _fill_all(self, group: list[DecodedStream], stop_at: float) -> None:
        bad = any(one.stream.item.fault == "prefill" for one in group)  # type: ignore[attr-defined]
        super()._fill_all(group, stop_at)
        for one in group if bad else ():
            if one.stream.id in self.open:
                self._end(one, FAULT)


class ReadOutputsMoveUp(StepLoop):
    """What was read together goes to the first streams, whoever failed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        read = self.calls.prefill_all

        def prefill_all(rows: Sequence[Row], *others: Any) -> None:
            read(rows, *others)
            ran = sorted(((row.output, row.error) for row in rows), key=lambda one: one[1] is not None)
            for row, (output, error) in zip(rows, ran, strict=True):
                row.output, row.error = output, error

        self.calls.prefill_all = prefill_all  # type: ignore[method-assign]


class ReadsAllAgain(StepLoop):
    """As many are read again although there was no time or memory for them."""

    def _fill_all(self, group: list[DecodedStream], stop_at: float) -> None:
        super()._fill_all(group, stop_at)
        self.most_read = self.engine.slots


class NoBudgetTogether(StepLoop):
    """All who wait are read at once."""

    def _join_together(self, stop_at: float, left: int) -> None:
        super()._join_together(stop_at, 10_000)


class LastComesFirst(StepLoop):
    """The newest joins first."""

    def _next_to_fill(self) -> DecodedStream | None:
        waiting = [one for one in self.open.values() if one.slot is None and one.held_at is None]
        one = super()._next_to_fill()
        return waiting[-1] if one is not None and one.slot is None else one


class OwnersDoNotCount(StepLoop):
    """Requests with many items get all the slots."""

    def _next_to_fill(self) -> DecodedStream | None:
        one = super()._next_to_fill()
        waiting = [one for one in self.open.values() if one.slot is None and one.held_at is None]
        return waiting[0] if one is not None and one.slot is None else one


class ShortOnesFirst(StepLoop):
    """A long prompt is passed over as long as short ones fit the budget."""

    def _next_to_fill(self) -> DecodedStream | None:
        one = super()._next_to_fill()
        waiting = [one for one in self.open.values() if one.slot is None and one.held_at is None]
        return min(waiting, key=lambda one: one.cost) if one is not None and one.slot is None else one


class NoBudget(StepLoop):
    """All who wait are prefilled at once."""

    def _join(self, stop_at: float, others: bool) -> None:
        while (one := self._next_to_fill()) is not None and self._has_slot(one):
            self._fill(one, one.cost - one.filled)


class NoDebt(StepLoop):
    """One long prompt after the other is prefilled."""

    def _join(self, stop_at: float, others: bool) -> None:
        self.debt = 0
        super()._join(stop_at, others)


class NoEndOfTime(StepLoop):
    """A turn lasts as long as it takes."""

    def _take_turn(self, stop_at: float) -> None:
        super()._take_turn(float("inf"))


class AlwaysAll(StepLoop):
    """Where the time is over before the guilty are found, the next turn begins as this one did."""

    def _step(self, stop_at: float) -> bool:
        self.group = self.engine.slots
        return super()._step(stop_at)


class NoDeadlineOfThose(StepLoop):
    """Those that have a slot have no deadline."""

    def _end_overdue(self, now: float) -> None:
        kept, self.open = self.open, {key: one for key, one in self.open.items() if one.slot is None}
        waiting = dict(self.open)
        super()._end_overdue(now)
        self.open = {key: one for key, one in kept.items() if key in self.open or key not in waiting}


class PiecesAfterTheClient(StepLoop):
    """What was ready when the client went is sent."""

    def cancel(self, stream_id: Hashable) -> None:
        if stream_id in self.open:
            self.events.append(StreamPiece(stream_id, b"late"))
        events = self.events
        super().cancel(stream_id)
        self.events = events


class CancelledLater(StepLoop):
    """A stream whose client has gone is left to end by itself."""

    def cancel(self, stream_id: Hashable) -> None:
        """Leave it."""


class _SentAgain(Outlet):
    def __init__(self, sent: tuple[bytes, ...]) -> None:
        super().__init__(())


class SentTwice(StepLoop):
    """In another worker a stream begins anew."""

    def _opened(self, stream: Stream, arrival: int) -> DecodedStream:
        return DecodedStream(stream, arrival, _SentAgain(stream.sent))


class _OneTooMany(Outlet):
    def put(self, piece: object) -> bytes | None:
        if self.sent and self.repeated == len(self.sent):
            self.sent = ()
            self.repeated = 0
            return None
        return super().put(piece)


class OneIsSkipped(StepLoop):
    """In another worker a stream loses a piece."""

    def _opened(self, stream: Stream, arrival: int) -> DecodedStream:
        return DecodedStream(stream, arrival, _OneTooMany(stream.sent))


class SharedDice(StepLoop):
    """All streams draw from one source."""

    def _admit(self, one: DecodedStream) -> None:
        super()._admit(one)
        if one.state is not None:
            one.state.random = self.__dict__.setdefault("dice", random.Random(1))


class ParkedForEver(StepLoop):
    """Who lost its slot while it was parked never gets another one."""

    def _next_to_fill(self) -> DecodedStream | None:
        one = super()._next_to_fill()
        return None if one is not None and one.slot is None and one.tokens else one


class ParkedGoesOn(StepLoop):
    """Who is parked is decoded all the same."""

    def _step(self, stop_at: float) -> bool:
        held = [(one, one.held_at) for one in self.open.values()]
        for one, _ in held:
            one.held_at = None
        stepped = super()._step(stop_at)
        for one, held_at in held:
            one.held_at = held_at
        return stepped


class ParkedKeepAll(StepLoop):
    """There is no bound of what parked streams keep."""

    def _parked(self) -> None:
        """Leave them."""


class DeadEngineIsTheirFault(StepLoop):
    """Whoever was being read when the engine died gets a 500."""

    def _fill(self, one: DecodedStream, part: int) -> bool:
        try:
            return super()._fill(one, part)
        except EngineDead:
            self._end(one, FAULT)
            return True


class OutputsAreBorrowed(StepLoop):
    """Outputs are what the engine fills again in its next step."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)

        def attempt(rows: list[Row], size: int) -> None:
            asked = [row.item for row in rows if isinstance(row.item, StepRow)]
            for row, output in zip(rows, self.engine.step(asked), strict=True):
                row.ran(output)

        if self.calls.padding.kind == "none":
            self.calls.isolation.attempt = attempt


class StateIsForgotten(StepLoop):
    """Who is put back begins with a new state."""

    def _put_back(self, one: DecodedStream) -> None:
        super()._put_back(one)
        one.state = StepState(one.stream.item, random.Random(one.stream.seed))


class PadsWithSomebody(StepLoop):
    """A step is filled up with the first slot."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.calls.scratch = 0


class _Twice(SlotTable):
    def give(self) -> int | None:
        slot = super().give()
        return slot if slot is None or self.count == 1 else 0


class OneSlotForTwo(StepLoop):
    """A slot is given although somebody has it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.slots = _Twice(self.engine.slots, self.clock)


BUGS: Sequence[type[StepLoop]] = [
    EverybodyEnds, OutputsMoveUp, AdvancesAgain, CacheIsKept, LostForMemory, HalfACache, AloneAfterwards,
    ReadersAllEnd, ReadOutputsMoveUp, ReadsAllAgain, NoBudgetTogether, LastComesFirst,
    OwnersDoNotCount, ShortOnesFirst, NoBudget, NoDebt, NoEndOfTime, AlwaysAll, NoDeadlineOfThose, PiecesAfterTheClient,
    CancelledLater, SentTwice, OneIsSkipped, SharedDice,
    ParkedForEver, ParkedGoesOn, ParkedKeepAll, DeadEngineIsTheirFault, OutputsAreBorrowed,
    StateIsForgotten, PadsWithSomebody, OneSlotForTwo,
]  # fmt: skip
