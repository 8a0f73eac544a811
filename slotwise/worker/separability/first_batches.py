"""Ask rows of real batches again, alone: where nothing could be proven all of the first batches; of ever fewer later ones one.

Without an example nobody can try at the start whether its mates change what a row says. Traffic shows it. And what is proven is
proven of such items as the examples: so one row of ever fewer batches is asked there, too, and all of the first batches with an
item of another kind: with an option that a model may take for all rows, say, or without a number that its mates may fill.

Where a row says something else alone, rows run one by one from then on, and those of this batch say what each said alone. What
another kernel may have rounded, and all that is proven, is asked once more where no kernel is another: beside its mates, and
among copies. Each is asked as things were before its batch came: what a handler keeps by a row's content hides nothing, and
nothing is counted twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from slotwise.worker.batch import NOT_RUN, Row
from slotwise.worker.familiar.own_state import AsItWas, kept_by
from slotwise.worker.hooks import ROUNDED, Hooks
from slotwise.worker.isolation import is_out_of_memory, row_error
from slotwise.worker.outputs import on_host
from slotwise.worker.ownership import owned
from slotwise.worker.padding import Padding
from slotwise.worker.request import Request
from slotwise.worker.separability.agree import agree
from slotwise.worker.separability.apart import AGAIN, KERNELS
from slotwise.worker.separability.audit import parsed
from slotwise.worker.separability.bits import bits, difference, padded_difference
from slotwise.worker.separability.kinds import AskingAgain, made_of
from slotwise.worker.separability.lengths import shape_of
from slotwise.worker.separability.mates import items_of, parts_of
from slotwise.worker.separability.proof import rounding
from slotwise.worker.separability.two_batches import PADDING
from slotwise.worker.separability.verdict import Verdict
from slotwise.worker.slot_errors import OutOfMemory

logger = logging.getLogger(__name__)

FIRST = 16  # batches of which every row is asked again, where nothing is proven
DRAWS = 3  # rows that say something else each time, from which on none is asked again where most do


class FirstBatches:
    """Looks at one handler's batches.

    budget_s: seconds that the first ones may take longer, all together. proven: items of which something is proven; None where
    nothing is.
    """

    def __init__(self, hooks: Hooks, padding: Padding, budget_s: float, proven: Collection[object] | None = None) -> None:
        self.hooks, self.padding, self.is_proven = hooks, padding, proven is not None
        self.turns = AskingAgain(0 if self.is_proven else FIRST, budget_s, list(map(kind_of, proven or ())))
        self.has_kinds = proven is None or any(map(_has_names, proven))  # else they are arrays and the like
        self.asked = self.draws = 0  # rows that were asked again, and those of them that say something else each time
        self.keeping = kept_by(hooks.handler)
        self.before: AsItWas | None = None  # the batch that runs now, where it may be looked at
        self.after: AsItWas | None = None

    @classmethod
    def of(cls, hooks: Hooks, padding: Padding, verdict: Verdict, model_dir: Path) -> FirstBatches | None:
        """What looks; None where nothing has to run together, no time is meant for it, or an engine rounds much."""
        handler = hooks.handler
        if not handler.settings.proof_s or verdict.separable is False:
            return None
        if not verdict.separable:
            return cls(hooks, padding, handler.settings.proof_s)
        if rounding(handler) > PADDING:
            return None
        proven = [handler._shown_to_model(item) for item in items_of(model_dir, handler)]
        return cls(hooks, padding, handler.settings.proof_s, proven)

    def begin(self, rows: Sequence[Row]) -> None:
        """These rows run now: remember how things are, where they may be asked again."""
        self.turns.new, self.before, self.after = set(), None, None
        if len(rows) < 2 or self._is_over():
            return
        try:
            if self.has_kinds:
                self.turns.begin(kind_of(self.hooks.handler._shown_to_model(row.asked)) for row in rows)
            if self.turns.due:
                self.before = self.keeping.now()
        except Exception:  # an author's own object may answer with anything
            logger.info("what the handler keeps cannot be remembered", exc_info=True)

    def look(self, rows: Sequence[Row], requests: Sequence[Request]) -> None:
        """Ask rows again that have run together. requests: by slot."""
        rows = [row for row in rows if row.error is None]
        if len(rows) < 2 or self._is_over():
            return
        try:
            with self.hooks.metrics().as_they_are():
                self._look(rows, requests)
        except KeyboardInterrupt:
            raise
        except BaseException:  # an author's sys.exit(), too: of what cannot be copied, say, nobody can tell
            logger.warning("a row that has run beside others cannot be asked again", exc_info=True)

    def _is_over(self) -> bool:
        """Whether nothing is to be found out any more: rows run one by one, or most of them say something else each time."""
        return self.hooks.handler.max_rows == 1 or (self.draws >= DRAWS and 2 * self.draws > self.asked)

    def _look(self, rows: Sequence[Row], requests: Sequence[Request]) -> None:
        if self.turns.due and not _differ(rows):  # mates that are its like tell nothing of a row
            return
        if not (asked := self.turns.taken(rows)):
            return
        began, near = time.monotonic(), list[Row]()
        tell = not self.is_proven or bool(self.turns.new)  # of what is proven only two batches of one shape tell
        try:
            if self.before is not None:
                self.after = self.keeping.now()
                self.before = self.after if self.before.has_made() else self.before
            same = all(self._says_the_same_alone(row, requests[row.slot], near, tell) for row in asked)
            if not same or (near and self._mates_change(near, rows, requests)):
                self._one_by_one(rows, requests)
            else:
                self._put_back(self.after)
        finally:
            self.turns.left_s -= time.monotonic() - began

    def _says_the_same_alone(self, row: Row, request: Request, near: list[Row], tell: bool) -> bool:
        """By what is answered: outputs may be padded to the length of the longest mate.

        near: gets the row, if but nearly, or where it fails alone, or where this alone does not tell.
        """
        if self._late():
            return True
        self.asked += 1
        self._put_back(self.after)
        beside, alone = self._said(row, request), self._alone(row)
        if alone.error is not None:  # its mates may have helped it: it is asked among copies of itself
            near[:0] = [] if isinstance(alone.error.source, OutOfMemory) else [row]
            return True
        if _alike(said := self._said(alone, request), beside, KERNELS):
            return True
        if not tell or _alike(said, beside) or _alike(_together(said), _together(beside), KERNELS):
            near.append(row)
            return True
        again = self._alone(row, back=False)  # with what the first time has left: what came before may count
        if _alike(said, self._said(again, request), AGAIN):
            return False
        if not _alike(alone.output, again.output, AGAIN):  # else but the answer is another each time: it has a time, or an id
            self.draws += 1
            return True
        pair = alone.output, row.output
        return bool(padded_difference(*pair).relative <= ROUNDED and _whole_apart(*pair) <= 1)

    def _mates_change(self, near: Sequence[Row], rows: Sequence[Row], requests: Sequence[Request]) -> bool:
        """Whether the first of these says something else among its mates than at the same place of as many copies of itself.

        Unknown, so False, where their items have several shapes: then the two batches have, too.
        """
        row, request = near[0], requests[near[0].slot]
        if self._late() or len({self._shapes(other) for other in rows}) > 1:
            return False

        def said(batch: Sequence[Row]) -> object:
            return self._said(self._again(batch)[rows.index(row)], request)

        copies = [row] * len(rows)
        among = said(copies)
        if _alike(among, said(rows), KERNELS):
            return False
        alone, again = self._alone(row), self._alone(row, back=False)  # what came before may count
        repeats = _alike(among, said(copies), AGAIN) and _alike(self._said(alone, request), self._said(again, request), AGAIN)
        self.draws += 0 if repeats else len(near)
        return repeats

    def _shapes(self, row: Row) -> tuple[object, ...]:
        return tuple(map(shape_of, parts_of(on_host(self.hooks.handler._shown_to_model(row.asked)))))

    def _said(self, row: Row, request: Request) -> object:
        """What the row is answered with. The hook gets a copy of its output: what it does to that is nothing to the answer."""
        if row.error is not None:
            return row.error.error()
        copy = Row(row.owner, owned(row.item))
        copy.ran(owned(row.output))
        return self.hooks.encode(copy, request, False)

    def _alone(self, row: Row, back: bool = True) -> Row:
        """A copy of the row that has run alone."""
        return self._again([row], back)[0]

    def _again(self, rows: Sequence[Row], back: bool = True) -> list[Row]:
        """Copies of the rows that have run together, as things were `back` before; where that fails they have the error."""
        if back:
            self._put_back(self.before)
        copies = [Row(row.owner, owned(row.asked), row.slot) for row in rows]
        try:
            self.hooks.attempt(copies, self.padding.size(len(rows), self.padding.max_rows))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's sys.exit(), too
            for one in copies:
                one.refuse(row_error(error, is_out_of_memory(error)))
        return copies

    def _one_by_one(self, rows: Sequence[Row], requests: Sequence[Request]) -> None:
        vars(self.hooks.handler)["max_rows"] = 1
        self._put_back(self.before)
        logger.warning("a row says something else beside other rows than alone: from now on rows run one by one")
        for row in rows:
            row.refuse(NOT_RUN)
            if self._late():
                continue
            alone = self._alone(row, back=False)
            row.item, row.output, row.error = alone.item, alone.output, alone.error  # collate may note something on the item
            row.result = row.error or self.hooks.encode(row, requests[row.slot], last=False)  # it may read what predict left

    def _put_back(self, remembered: AsItWas | None) -> None:
        if remembered is not None:
            remembered.put_back()

    def _late(self) -> bool:
        return time.monotonic() > self.hooks.handler.predict_until


def _differ(rows: Sequence[Row]) -> bool:
    first, *others = (bits(row.asked) for row in rows)
    return any(first != other for other in others)


def _has_names(item: object) -> bool:
    return isinstance(item, Mapping) or (type(item) in (list, tuple) and any(map(_has_names, item)))  # type: ignore[call-overload]


def kind_of(item: object) -> object:
    """What an item is made of (kinds.py), of an array also its type, and whether it has NaN."""
    return made_of(item, _kind_of_array)


def _kind_of_array(item: object) -> object:
    if not hasattr(item, "dtype"):
        return type(item)
    on_cpu = getattr(getattr(item, "device", None), "type", "cpu") == "cpu"  # no batch waits until a GPU has told
    array = np.asarray(on_host(item)) if on_cpu else np.empty(0)
    return type(item), str(item.dtype), array.dtype.kind in "fc" and array.size > 0 and bool(np.isnan(array.min()))


def _alike(one: object, other: object, tolerance: float = ROUNDED) -> bool:
    """Whether two results say the same but for rounding, also where they are written as JSON."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):  # an answer with its content type
        return all(_alike(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, str | bytes) and isinstance(other, str | bytes):
        one, other = _read(one), _read(other)
        close = agree(one, other, tolerance)
    else:
        close = difference(one, other).relative <= tolerance
    return close and _whole_apart(one, other) <= (tolerance > KERNELS)


def _together(said: object) -> object:
    """What is said, each list of floats as one array: a kernel rounds much of a number near zero, but little of them all."""
    if isinstance(said, Mapping):
        return {name: _together(part) for name, part in said.items()}
    if type(said) not in (list, tuple):
        return said
    assert isinstance(said, list | tuple)
    return np.array(said) if {float} == set(map(type, said)) else type(said)(map(_together, said))


def _whole_apart(one: object, other: object) -> float:
    """How far whole numbers in the same places are apart: rounding makes 1 of a hair; else it is another's id, or class."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return max((_whole_apart(one[name], other[name]) for name in one.keys() & other.keys()), default=0)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return max(map(_whole_apart, one, other), default=0)
    if isinstance(one, int) and isinstance(other, int):
        return abs(one - other)
    first, second = on_host(one), on_host(other)
    if not all(isinstance(number, int | np.integer | np.ndarray) for number in (first, second)):
        return 0
    first, second = np.asarray(first), np.asarray(second)
    if {first.dtype.kind, second.dtype.kind} - set("iub") or first.shape != second.shape or np.array_equal(first, second):
        return 0
    return max(1.0, float(np.abs(first.astype(np.float64) - second).max()))


def _read(text: str | bytes) -> object:
    return parsed(text.encode() if isinstance(text, str) else text)
