"""Prove that a network keeps the rows of a batch apart: that a row's output is the same to the bit, whatever its mates are.

    x x x x     the row x among copies of itself
    m m x m     x at the same place, among mates: loud ones, empty ones, tiny ones, ordinary ones

Both batches have one shape, so a network whose rows do not touch each other computes the same for x in both: no tolerance is
needed. One bit that differs names a network that mixes rows, such as one that normalises over the batch, or that quantises with
one scale a batch. First the same batch runs twice, because a network that is not deterministic cannot be proven at all.

Between two shapes, and between two places of a batch, an engine may use other kernels, which round otherwise. That is no fault.
It is measured, because whoever compares two answers needs to know how far they may be apart. What moves a number by far more
than rounding does makes an answer depend on how many mates there are.

Where items have lengths, the longest of a batch decides how far all others are padded. So the row alone, padded to itself, is
compared with the row beside one that is longer, within a tolerance: a network that forgets the mask moves it by far more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from slotwise.worker.isolation import is_out_of_memory
from slotwise.worker.separability.bits import Deviation, bits, difference, holds_floats, largest, padded_difference
from slotwise.worker.separability.verdict import Verdict
from slotwise.worker.slot_errors import SlotError

# Items padded to so many rows: one output or SlotError an item. It may raise anything.
Attempt = Callable[[list[Any], int], list[Any]]
NOT_DETERMINISTIC = "not deterministic"
# How far padding may move a row's numbers, of the largest of them and its mate's. BERT, DistilBERT and RoBERTa, with a mask and
# beside a row twice as long, moved theirs by 1e-5 in fp32; in bf16 by up to 0.04, and a lone logit near zero by 0.12, once.
PADDING, PADDING_ROUNDED = 0.02, 0.1
Agree = Callable[[Any, Any], bool]


def within(tolerance: float) -> Agree:
    """Whether a row's output alone and in a batch are the same but for rounding; of what is no number nobody knows."""

    def agree(alone: Any, output: Any) -> bool:
        if not holds_floats(alone):
            return True  # a text or a label may be another one at a tie
        apart = difference(alone, output).absolute
        return math.isfinite(apart) and apart <= tolerance * max(largest(alone), largest(output))

    return agree


def prove(
    attempt: Attempt,
    row: Any,
    mates: Mapping[str, Any],
    sizes: Iterable[int],
    *,
    copies: Iterable[int] = (),
    longest: Any = None,
    tolerance: float = PADDING,
    agree: Agree = within(PADDING),
    settling: int = 1,
    budget_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Try one row among copies of itself and among mates, in batches of each of these sizes, the smallest first.

    row: an item that the model answers. mates: items, by what they are ("loud"). copies: further sizes, in which it is only
    looked at whether the bits are those of the row alone. longest: stands first in every batch, where items have lengths, so
    that each batch is padded to the same one. tolerance: how far it may move the row, of the largest number; infinite where no
    two lengths run together. agree: whether what it answers in a batch is what it answers alone; where items have lengths the
    tolerance says that. settling: how often an engine may run a shape before its bits stay the same.

    budget_s: no size is begun that would not be done by then. The verdict's `sizes` say how far it came.
    """
    trial = _MatesTrial(attempt, row, mates, longest, tolerance, agree, settling, clock)
    stop_at = clock() + budget_s
    shape_s = 0.0  # what the last size took beside its calls: an engine may compile each new shape
    with_mates = set(sizes)
    for size in sorted((with_mates | set(copies)) - {1}):
        begun = clock()
        if begun + shape_s + trial.calls_s(size, size in with_mates) > stop_at:
            return trial.limited(f"there was no time for batches of {size}")
        try:
            if cause := trial.run(size, with_mates=size in with_mates):
                return trial.verdict(cause)
        except Exception as error:
            what = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {error}"
            return trial.limited(f"a batch of {size} fails: {what}"[:200])
        shape_s = max(0.0, clock() - begun - trial.calls_s(size, size in with_mates))
    return trial.verdict("" if trial.done else "there are no mates to try")


def fills_up(attempt: Attempt, row: Any, empty: Any) -> bool:
    """Whether a row of which numbers are missing gives something else beside one that has them than beside itself.

    So it is where what is missing becomes the batch's mean, or what the row before it has. An error is something else than an
    answer; which error it is decides nothing.
    """

    def give(*items: Any) -> list[Any]:
        try:
            outputs = attempt(list(map(deepcopy, items)), 2)
            return [SlotError if isinstance(output, SlotError) else bits(output) for output in outputs]
        except Exception:
            return [SlotError] * 2

    beside_itself = give(empty, empty)
    return beside_itself != [give(empty, row)[0], give(row, empty)[1]] and beside_itself == give(empty, empty)


class _MatesTrial:
    """What is known so far. refuted: whether one bit has differed where none may. padded: in which batch padding was tried.

    row_s: what the last call took, a row. apart: whether each kind of mates is tried by itself, because they fail together.
    """

    def __init__(
        self,
        attempt: Attempt,
        row: Any,
        mates: Mapping[str, Any],
        longest: Any,
        tolerance: float,
        agree: Agree,
        settling: int,
        clock: Callable[[], float],
    ) -> None:
        self.attempt, self.row, self.mates, self.longest, self.settling = attempt, row, dict(mates), longest, settling
        self.tolerance, self.agree, self.clock = tolerance, agree, clock
        self.alone: list[Any] = []
        self.done: list[int] = []
        self.padded: list[int] = []
        self.refuted, self.apart = False, False
        self.row_s = 0.0
        self.between_shapes = Deviation()
        self.same_bits, self.same_so_far = 1, True
        self.even: list[int] = []

    def calls_s(self, size: int, with_mates: bool) -> float:
        """How long the calls of `run` take, once a shape is compiled."""
        calls = max(2, self.settling + 1) + len(self.kinds(size)) if with_mates else 1
        return calls * size * self.row_s

    def run(self, size: int, with_mates: bool) -> str:
        """Try batches of this size. Returns what is wrong with them, "" where nothing is. Raises what the model raises."""
        if not self.alone:
            self.alone = self.settled(1)
            if isinstance(self.alone[0], SlotError):
                return f"the example is refused: {self.alone[0].message}"
        copies = self.settled(size) if with_mates else self.batch([self.row] * size)
        if self.refuted:
            return f"{NOT_DETERMINISTIC}: the same batch of {size} again"
        by_size = self.compare_with_alone(copies, size)
        if self.longest is not None and not self.padded:
            if cause := self.padding(copies):
                return cause
            self.padded = [size]
        if not with_mates:
            return self.refuting(by_size)
        place, tried, failed = size // 2, False, None
        kinds = self.kinds(size)
        while kinds:
            kind, batch = kinds.pop(0)
            batch[place] = self.row
            try:
                output = self.batch(batch)[place]
            except Exception as error:
                if is_out_of_memory(error):  # no mate is to blame
                    raise
                failed = error
                if self.mates.pop(kind, None) is None:  # they fail together: which of them does the model take?
                    self.apart = True
                    kinds = self.kinds(size)
                continue
            if bits(output) != bits(copies[place]):
                self.refuted = True
                repeats = bits(self.batch([self.row] * size)) == bits(copies)
                what = f"a batch of {size}, {kind} mates" if repeats else f"the same batch of {size} again"
                return f"{'mixes rows' if repeats else NOT_DETERMINISTIC}: {what}"
            tried = True
        if failed and self.done and not tried:  # mates that it took in a smaller batch
            raise failed
        self.done += [size] if tried else []
        return self.refuting(by_size)

    def refuting(self, cause: str) -> str:
        """The cause, where there is one."""
        self.refuted = self.refuted or bool(cause)
        return cause

    def settled(self, size: int) -> list[Any]:
        """The outputs of a batch of copies, once it gives the same bits again."""
        outputs = self.batch([self.row] * size)
        for runs in range(2, self.settling + 3):
            before, outputs = outputs, self.batch([self.row] * size)
            if runs > self.settling and bits(before) == bits(outputs):
                return outputs
        self.refuted = True
        return outputs

    def batch(self, items: Sequence[Any]) -> list[Any]:
        """The outputs of one batch. Nothing that a hook does to its items or its outputs later changes what is compared."""
        if self.longest is not None and len(items) > 1:
            items = [self.longest, *items[1:]]
        begun = self.clock()
        outputs = deepcopy(self.attempt([deepcopy(item) for item in items], len(items)))
        self.row_s = (self.clock() - begun) / len(items)
        return outputs

    def kinds(self, size: int) -> list[tuple[str, list[Any]]]:
        """What stands around the row: in the smallest batch each kind of mates by itself, in larger ones all of them.

        Where all of them fail together, each by itself.
        """
        smallest = 2 if self.longest is None else 3  # the longest leaves no place for a mate in a batch of two
        if size <= smallest or self.apart:
            return [(kind, [mate] * size) for kind, mate in self.mates.items() if size >= smallest]
        mates = list(self.mates.values())
        return [("all kinds of", [mates[i % len(mates)] for i in range(size)])] if mates else []

    def padding(self, outputs: Sequence[Any]) -> str:
        """How a longer mate changes the row, in plain words; "" where it moves it by no more than the tolerance."""
        if self.tolerance > PADDING and not holds_floats(self.alone[0]):
            return ""  # at a tie, what is rounded to bf16 or int8 may become another text
        apart = padded_difference(self.alone[0], outputs[1]).absolute
        self.refuted = apart > self.tolerance * max(largest(self.alone[0]), largest(outputs[0]))
        what = f"a number moves by {apart:.1e}" if math.isfinite(apart) else "its output is another one"
        return f"padding changes a row: {what} beside a longer one" if self.refuted else ""

    def compare_with_alone(self, copies: Sequence[Any], size: int) -> str:
        """How far each of the copies is from the row alone. Returns what is wrong with that, "" where nothing is."""
        outputs = copies if self.longest is None else copies[1:]
        for output in outputs:
            self.between_shapes = self.between_shapes.most(difference(self.alone[0], output))
        if self.longest is None and not all(self.agree(self.alone[0], output) for output in outputs):
            apart = self.between_shapes.absolute
            what = f"a number moves by {apart:.1e}" if math.isfinite(apart) else "its output is another one"
            return f"a batch of {size} changes a row: {what}, whatever its mates are"
        if self.longest is not None or not holds_floats(self.alone[0]):
            return ""  # a text may be the same although the numbers behind it are not; another length is another shape
        here = [bits(output) for output in outputs]
        if all(one == here[0] for one in here):
            self.even.append(size)
        self.same_so_far = self.same_so_far and all(one == bits(self.alone[0]) for one in here)
        if self.same_so_far and size == self.same_bits + 1:
            self.same_bits = size
        return ""

    def limited(self, cause: str) -> Verdict:
        """The verdict where larger batches could not be tried: nobody runs them."""
        return replace(self.verdict(cause), most_rows=self.done[-1] if self.done else 1)

    def verdict(self, cause: str) -> Verdict:
        """What follows from all that was tried."""
        separable, most_rows = (False, 1) if self.refuted else (None if cause else True, 0)
        sizes, even = tuple(sorted({*self.padded, *self.done} if self.done else ())), tuple(self.even)
        return Verdict(separable, cause, most_rows, sizes, self.between_shapes, self.same_bits, even)
