"""Call a step engine and its author, so that whatever they do wrong ends only the streams that it was about."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from operator import index

from slotwise.worker.answer import Refusal
from slotwise.worker.batch import Row
from slotwise.worker.isolation import EngineDead, Isolation, is_out_of_memory
from slotwise.worker.outputs import ROWS, on_host, rows_of
from slotwise.worker.ownership import owned
from slotwise.worker.padding import Padding
from slotwise.worker.slot_errors import ModelFault, OutOfMemory, SlotError, TooLarge
from slotwise.worker.steps.step_engine import End, Next, StepAuthor, StepEngine, StepRow, StepState

logger = logging.getLogger(__name__)

NO_MEMORY = Refusal.of(OutOfMemory("this input alone does not fit into the memory of the model's device"))


def is_no_memory(error: Refusal) -> bool:
    """Whether somebody was refused because memory ran out."""
    return isinstance(error.source, OutOfMemory)


class EngineCalls:
    """The calls of one engine and its author. known_good: an item that has had a step, for want of an example.

    Raises ValueError where steps are to be filled up and the author gives no example to fill them with.
    """

    def __init__(self, engine: StepEngine, author: StepAuthor, padding: Padding, clock: Callable[[], float]) -> None:
        self.engine, self.author, self.padding = engine, author, padding
        self.scratch = engine.slots
        self.scratch_filled = False
        self.known_good: object = None
        if padding.kind != "none" and author.example() is None:
            raise ValueError("a step can only be filled up by an example, and the handler gives none")
        self.isolation = Isolation(self._attempt, padding, self.alive, engine.release, clock)
        self.reading = Isolation(self._attempt_to_read, Padding("none", engine.slots), self.alive, engine.release, clock)

    def warm_up(self) -> None:
        """Run the author's example at every size of a step. Raises what the engine raises."""

        def row() -> Row | None:
            if (item := self.author.example()) is None:
                return None
            self._fill_scratch(item)
            return Row(0, StepRow(self.scratch, 0, 0))

        try:
            self.isolation.prepare(row)
        finally:
            self._empty_scratch()

    def state(self, item: object, seed: int) -> StepState:
        """What `advance` knows of a new stream. Raises ModelFault where its item cannot be copied."""
        try:
            return StepState(owned(item), random.Random(seed))
        except Exception as error:
            raise ModelFault("what the handler decoded cannot be copied") from error

    def cost(self, item: object) -> int | Refusal:
        """How many tokens this item's prefill has, at least 1; its refusal where that is too many."""
        try:
            tokens = max(1, index(self.engine.tokens(owned(item))))
            if tokens > self.engine.longest_item:
                raise TooLarge(f"the input has {tokens} tokens, but the model takes at most {self.engine.longest_item}")
            return tokens
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _refused(error, "the length of this input could not be told")

    def step(self, rows: Sequence[Row], stop_at: float, ids: Callable[[], str]) -> None:
        """Run a step of these rows, each of an owner of its own: each then has its output or its error.

        Raises EngineDead where the engine is dead; rows that have an output by then keep it.
        """
        self.isolation.run(rows, stop_at, ids=ids)

    def prefill_all(self, rows: Sequence[Row], stop_at: float, ids: Callable[[], str]) -> None:
        """Read the items of these rows, each a (slot, item), at once: each row then has its output or its error.

        Raises EngineDead where the engine is dead; rows that have an output by then keep it.
        """
        self.reading.run(rows, stop_at, ids=ids)

    def prefill(self, slot: int, item: object, start: int, stop: int) -> object:
        """Read these tokens of the item into the slot: the output after the last one, or a Refusal.

        Raises EngineDead where the engine is dead.
        """
        try:
            output = self._prefilled(slot, item, start, stop)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._release()
            output = _refused(error, "the model failed on this input")
            if isinstance(error, SlotError) or output is NO_MEMORY:
                return output
        if isinstance(output, Refusal) and not self.alive():
            raise EngineDead("the engine fails on what it is known to run, too")
        return output

    def had_step(self, item: object) -> None:
        """The engine has run a first step of this item."""
        if self.known_good is None:
            self.known_good = owned(item)

    def advance(self, state: StepState, tokens: Sequence[int], output: object) -> Next | End | Refusal:
        """What the author makes of an output; a Refusal where that is an error, or nothing that can be used."""
        state.tokens = list(tokens)
        try:
            outcome: object = self.author.advance(state, output)
            if isinstance(outcome, SlotError):
                return Refusal.of(outcome)
            if isinstance(outcome, End):
                return End(outcome.piece)
            if isinstance(outcome, Next) and (token := index(outcome.token)) >= 0:
                return Next(token, outcome.piece)
            raise TypeError(f"advance gave {outcome!r:.80}, neither the next token nor the end")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _refused(error, "the model's output could not be encoded")

    def free(self, slot: int) -> None:
        """Free a slot. Where that fails the slot may still be given: a prefill starts afresh, whatever was there."""
        try:
            self.engine.free(slot)
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.warning("slot %d could not be freed", slot, exc_info=True)

    def alive(self) -> bool:
        """Whether the engine still runs the author's example, or else an item that it has run.

        True where there is neither.
        """
        try:
            if (item := self._example()) is None:
                return True
            row = Row(0, StepRow(self.scratch, 0, 0))
            self._fill_scratch(item)
            self._attempt([row], self.padding.size(1, 1))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if is_out_of_memory(error):  # the streams have it, and one of them will be put back
                return True
            logger.exception("the engine fails on what it is known to run")
            return False
        finally:
            self._empty_scratch()
        return row.error is None

    def _example(self) -> object:
        item: object = self.author.example()
        return self.known_good if item is None else item

    def _fill_scratch(self, item: object) -> None:
        self.scratch_filled = False
        own = owned(item)
        if isinstance(self._prefilled(self.scratch, own, 0, max(1, index(self.engine.tokens(own)))), Refusal):
            raise ModelFault("the output of the example is not finite")
        self.scratch_filled = True

    def _empty_scratch(self) -> None:
        """Free the scratch slot where no step is filled up."""
        if self.padding.kind == "none":
            self.scratch_filled = False
            self.free(self.scratch)

    def _prefilled(self, slot: int, item: object, start: int, stop: int) -> object:
        own = owned(item)
        made = self.engine.prefill_part(slot, own, start, stop) if self.engine.in_parts else self.engine.prefill(slot, own)
        return rows_of([on_host(made)], 1, 1, ROWS)[0]

    def _attempt(self, rows: list[Row], size: int) -> None:
        """Run the engine once on these rows, filled up with the scratch slot's. May raise anything."""
        if size > len(rows) and not self.scratch_filled:  # only where there is an example (__init__)
            self._fill_scratch(self.author.example())
        padding = [StepRow(self.scratch, 0, 0)] * (size - len(rows))
        asked = [row.item for row in rows if isinstance(row.item, StepRow)]
        outputs: object = self.engine.step(asked + padding)
        if type(outputs) is list:
            outputs = list(map(on_host, outputs))
        for row, output in zip(rows, rows_of(outputs, size, len(rows), ROWS), strict=True):  # b = size
            row.ran(output)

    def _attempt_to_read(self, rows: list[Row], size: int) -> None:
        """Read the rows' items at once. May raise anything."""
        slots, items = zip(*[row.item for row in rows if isinstance(row.item, tuple)], strict=True)
        outputs: object = self.engine.prefill_all(list(slots), [owned(item) for item in items])
        if type(outputs) is list:
            outputs = list(map(on_host, outputs))
        for row, output in zip(rows, rows_of(outputs, size, len(rows), ROWS), strict=True):  # size = len(rows)
            row.ran(output)

    def _release(self) -> None:
        try:
            self.engine.release()
        except Exception:
            logger.warning("the engine cannot free what a failed call holds", exc_info=True)


def _refused(error: BaseException, message: str) -> Refusal:
    if isinstance(error, SlotError):
        return Refusal.of(error)
    if is_out_of_memory(error):
        return NO_MEMORY
    logger.warning("%s", message, exc_info=error)
    return Refusal.of(ModelFault(message))
