"""The streams of a step engine: each waits, or has a slot.

A stream's tokens are kept beside its slot. So a slot can be taken away at any time: its cache is made again from the item and
the tokens, and `advance` is never called twice for the same output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slotwise.worker.answer import Refusal
from slotwise.worker.padding import Padding
from slotwise.worker.slot_errors import ModelFault, SlotError
from slotwise.worker.steps.engine_calls import EngineCalls
from slotwise.worker.steps.open_streams import OpenStream, StreamRunner, longest_held
from slotwise.worker.steps.outlet import Outlet
from slotwise.worker.steps.slot_table import SlotTable
from slotwise.worker.steps.step_engine import End, StepAuthor, StepEngine, StepRow, StepState
from slotwise.worker.steps.streams import Stream, TurnLimits


@dataclass(eq=False)
class DecodedStream(OpenStream):
    """A stream that is decoded step by step.

    cost: tokens of its prefill. tokens: those of its answer so far. slot: None while it waits. filled: how much of the prefill
    is in the slot. written: how many of `tokens` are. slots_before: how many slots there were before memory ran out for it.
    """

    state: StepState | None = None
    cost: int = 1
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    filled: int = 0
    written: int = 0
    slots_before: int = 0

    def next_row(self) -> StepRow:
        """The row of its next step."""
        assert self.slot is not None
        return StepRow(self.slot, self.tokens[self.written], self.written)


class SlotHolders(StreamRunner[DecodedStream]):
    """Who has a slot, and who waits for one; see `StepLoop`."""

    def __init__(
        self, engine: StepEngine, author: StepAuthor, limits: TurnLimits, padding: Padding, clock: Callable[[], float]
    ) -> None:
        super().__init__(limits, clock)
        self.engine = engine
        self.calls = EngineCalls(engine, author, padding, clock)
        self.slots = SlotTable(engine.slots, clock)

    def _opened(self, stream: Stream, arrival: int) -> DecodedStream:
        return DecodedStream(stream, arrival, Outlet(stream.sent))

    def _admit(self, one: DecodedStream) -> None:
        """Refuse what is too long for the cache before anything of it is computed."""
        cost = self.calls.cost(one.stream.item)
        if isinstance(cost, Refusal):
            self._end(one, cost)
            return
        one.cost = cost
        try:
            one.state = self.calls.state(one.stream.item, one.stream.seed)
        except SlotError as error:
            self._end(one, error)

    def _left(self, one: DecodedStream) -> None:
        if one.slot is not None:
            slot, one.slot = one.slot, None
            self.slots.take_back(slot)
            self.calls.free(slot)

    def _put_back(self, one: DecodedStream) -> None:
        """The stream waits again, at its place in the order. Its cache is made anew when it has a slot."""
        self._left(one)
        one.filled = one.written = 0

    def _holders(self) -> list[DecodedStream]:
        return [one for one in self.open.values() if one.slot is not None]

    def _parked(self) -> None:
        parked = [one for one in self._holders() if one.held_at is not None]
        if len(parked) > self.limits.parked and (first := longest_held(parked)) is not None:
            self._put_back(first)

    def _advance(self, one: DecodedStream, output: object) -> None:
        """Let the author choose the next token, and send the piece that is ready."""
        assert one.state is not None
        outcome = self.calls.advance(one.state, one.tokens, output)
        if isinstance(outcome, Refusal):
            self._end(one, outcome)
        elif outcome.piece is not None and not self._put(one, outcome.piece):
            return
        elif isinstance(outcome, End):
            self._end(one)
        elif len(one.tokens) >= self.engine.longest_answer:
            self._end(one, ModelFault("the answer is longer than the model's cache"))
        else:
            one.tokens.append(outcome.token)

    def _make_room(self, needy: DecodedStream, error: Refusal, beside: int) -> None:
        """Memory ran out for a stream beside others: a parked one gives its slot back, else the newest. Alone it ends.

        beside: how many streams had slots when memory ran out, itself among them; some may have left since.
        """
        holders = self._holders()
        if beside == 1:
            self.slots.never_fits(needy.slots_before)
            self._end(needy, error)
            return
        if holders == [needy]:
            return
        needy.slots_before = max(needy.slots_before, self.slots.most)
        self.slots.too_many(len(holders))
        self._put_back(longest_held(holders) or holders[-1])
        if needy.slot is not None and needy.filled < needy.cost:  # what a failed prefill left there is void
            self._put_back(needy)
