"""Decode many streams side by side: requests join and leave between two steps.

turn:  deadlines -> one step of each stream that decodes -> prefill those who join, within a budget of tokens
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from slotwise.worker.answer import Refusal
from slotwise.worker.batch import NOT_RUN, Row
from slotwise.worker.isolation import EngineDead
from slotwise.worker.padding import Padding
from slotwise.worker.steps.decoded_streams import DecodedStream, SlotHolders
from slotwise.worker.steps.engine_calls import is_no_memory
from slotwise.worker.steps.open_streams import first_in_turn, logger, longest_held
from slotwise.worker.steps.repeatable import AskedOnce, has_leftovers, objection, objection_to_slots, objection_together
from slotwise.worker.steps.slot_table import SlotTable
from slotwise.worker.steps.step_engine import StepAuthor, StepEngine
from slotwise.worker.steps.streams import TurnLimits

NO_EXAMPLE = "the handler gives no example to try it with"
LEFTOVERS = "what a slot held before changes what is read into it next: `free` or `prefill` has to empty it"


class StepLoop(SlotHolders):
    """The runner of a step engine and the handler that advances its streams.

    padding: how a step's rows are filled up, by the scratch slot's, for engines that want static shapes. By default a step has
    any number of rows up to the engine's slots.
    """

    def __init__(
        self,
        engine: StepEngine,
        author: StepAuthor,
        limits: TurnLimits | None = None,
        padding: Padding | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine, author, limits or TurnLimits(), padding or Padding("none", engine.slots), clock)
        self.group = engine.slots  # the most rows that one turn steps
        self.together = engine.together
        self.most_read = engine.slots  # the most items that one turn reads at once
        self.reading: list[DecodedStream] = []  # those that are read at once next
        self.next_read = 0  # the turn before which nobody is read beside others
        self.debt = 0  # prefilled tokens that the next turns have to make up for

    @classmethod
    def start(
        cls,
        engine: StepEngine,
        author: StepAuthor,
        limits: TurnLimits | None = None,
        padding: Padding | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """A runner that is warmed up. Raises what the engine raises on the author's example, and ValueError for LEFTOVERS.

        Where it is not proven that the engine's steps can be repeated and its slots keep apart, each row runs alone and once.
        Where its slots do not keep apart even so, streams run one after the other.
        """
        item, mixes = author.example(), None
        if item is not None and has_leftovers(engine, item, author.others()):
            raise ValueError(LEFTOVERS)
        why = NO_EXAMPLE if item is None else objection(engine, item, author.others())
        if why is not None:
            logger.warning("every row of a step runs alone: %s", why)
            mixes = NO_EXAMPLE if item is None else objection_to_slots(engine, item, author.others())
            padding, engine = Padding("none", 1), AskedOnce(engine)
        loop = cls(engine, author, limits, padding, clock)
        if mixes is not None:
            logger.warning("streams run one after the other, in one slot: %s", mixes)
            loop.slots = SlotTable(1, clock)
        if engine.together and item is not None and (why := objection_together(engine, item, author.others())) is not None:
            logger.warning("items are read one by one: %s", why)
            loop.together = False
        loop.calls.warm_up()
        return loop

    # A turn ----------------------------------------------------------------------------------------------------------

    def _take_turn(self, stop_at: float) -> None:
        try:
            stepped = self._step(stop_at)
            self._join(stop_at, others=stepped)
        except EngineDead:
            logger.exception("the engine is dead: %d streams are to go on in another worker", len(self.open))
            self.dead = True

    def _step(self, stop_at: float) -> bool:
        """One step of every stream that decodes, who has waited longest first. Returns whether there was any.

        Where the time is over before all have had their step, the next turn takes half as many. One alone is run to its end,
        which is a few calls at most. So whoever makes the engine fail is found, however long a call takes.
        """
        ready = [one for one in self._holders() if one.held_at is None and one.filled == one.cost]
        ready.sort(key=lambda one: (one.last_turn, one.arrival))
        group = ready[: self.group]
        if not group:
            return False
        beside = len(self._holders())
        rows = [Row(i, one.next_row()) for i, one in enumerate(group)]
        try:
            self.calls.step(
                rows, stop_at if len(rows) > 1 else float("inf"), lambda: ", ".join(str(one.stream.id) for one in group)
            )
        finally:
            self._take(group, rows, beside)
        unfinished = any(row.error is NOT_RUN for row in rows)
        self.group = max(1, len(group) // 2) if unfinished else min(2 * self.group, self.engine.slots)
        return True

    def _take(self, group: list[DecodedStream], rows: list[Row], beside: int) -> None:
        """Take what a step gave: outputs, errors, and what has not run. beside: how many streams had slots then."""
        needy: list[tuple[DecodedStream, Refusal]] = []
        for one, row in zip(group, rows, strict=True):
            if row.error is None:
                self._stepped(one, row.output)
            elif is_no_memory(row.error):
                needy.append((one, row.error))
            elif row.error is not NOT_RUN:
                self._end(one, row.error)
        if needy:
            self._make_room(*needy[0], beside)

    def _stepped(self, one: DecodedStream, output: object) -> None:
        one.last_turn = self.turns
        one.written += 1
        if one.written == 1:
            self.calls.had_step(one.stream.item)
        if one.written == len(one.tokens):  # else its cache is being made again, and this output has been seen
            self._advance(one, output)

    # Who joins -------------------------------------------------------------------------------------------------------

    def _join(self, stop_at: float, others: bool) -> None:
        """Prefill those who join. others: whether streams are being decoded, whose next token must not wait for long."""
        if not others:
            self.debt = 0
        left = max(0, self.limits.prefill_tokens - self.debt)
        self.debt = max(0, self.debt - self.limits.prefill_tokens)
        if self.together:
            if not others or self.turns >= self.next_read:
                self._join_together(stop_at, left)
            return
        first = True
        while left > 0 and (first or self.clock() < stop_at):
            one = self._next_to_fill()
            if one is None:
                return
            rest = one.cost - one.filled
            part = min(rest, left) if self.engine.in_parts else rest
            if (part > left and not first) or not self._has_slot(one):
                return
            left -= part
            self.debt += max(0, -left)
            first = False
            if not self._fill(one, part):
                return

    def _join_together(self, stop_at: float, left: int) -> None:
        """Prefill those who join in one call, in which `left` tokens are read at most, or one item."""
        full = False  # whether somebody is left for a next call
        while (one := self._next_to_fill()) is not None:
            late = self.clock() >= stop_at or one.cost > left or len(self.reading) >= self.most_read
            full = left <= 0 or (late and bool(self.reading))
            if full or not self._has_slot(one):
                break
            left -= one.cost
            self.debt += max(0, -left)
            self.reading.append(one)
        group, self.reading = self.reading, []
        if group and not full:
            self.next_read = self.turns + self.limits.gather_turns
        if len(group) > 1:
            self._fill_all(group, stop_at)
        elif group:
            self.most_read = min(2 * self.most_read, self.engine.slots)
            self._fill(group[0], group[0].cost)

    def _fill_all(self, group: list[DecodedStream], stop_at: float) -> None:
        """Prefill these at once. Who was not read for want of time or memory waits again; half as many are read next time."""
        beside = len(self._holders())
        rows = [Row(i, (one.slot, one.stream.item)) for i, one in enumerate(group)]
        try:
            self.calls.prefill_all(rows, stop_at, lambda: ", ".join(str(one.stream.id) for one in group))
        finally:
            unread = list[DecodedStream]()
            needy: tuple[DecodedStream, Refusal] | None = None
            for one, row in zip(group, rows, strict=True):
                if row.error is None:
                    self._filled(one, one.cost, row.output)
                elif is_no_memory(row.error) and needy is None:
                    needy = one, row.error
                elif is_no_memory(row.error) or row.error is NOT_RUN:
                    unread.append(one)
                else:
                    self._end(one, row.error)
            for one in unread:
                self._put_back(one)
            if needy is not None:
                self._make_room(*needy, beside)
            self.most_read = min(2 * self.most_read, self.engine.slots)
            if unread or needy is not None:
                self.most_read, self.next_read = max(1, len(group) // 2), self.turns

    def _next_to_fill(self) -> DecodedStream | None:
        """Who is prefilled next: who has begun, then who waits; None where there is nobody."""
        served = [one for one in self._holders() if one.held_at is None]
        for one in served:
            if one.filled < one.cost and one not in self.reading:
                return one
        waiting = [one for one in self.open.values() if one.slot is None and one.held_at is None]
        return first_in_turn(waiting, served)

    def _has_slot(self, one: DecodedStream) -> bool:
        """Give the stream a slot, if need be that of a parked one. Returns whether it has one."""
        if one.slot is None:
            one.slot = self.slots.give()
        if one.slot is None and (parked := longest_held(self._holders())) is not None:
            self._put_back(parked)
            one.slot = self.slots.give()
        return one.slot is not None

    def _fill(self, one: DecodedStream, part: int) -> bool:
        """Prefill so many tokens. Returns False where memory ran out."""
        assert one.slot is not None
        output = self.calls.prefill(one.slot, one.stream.item, one.filled, one.filled + part)
        if isinstance(output, Refusal):
            if is_no_memory(output):
                self._make_room(one, output, len(self._holders()))
                return False
            self._end(one, output)
            return True
        self._filled(one, part, output)
        return True

    def _filled(self, one: DecodedStream, part: int, output: object) -> None:
        """So many tokens more are in the slot."""
        one.filled += part
        one.last_turn = self.turns
        if one.filled == one.cost and not one.tokens:
            self._advance(one, output)
