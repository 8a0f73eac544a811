"""Find out, before an engine serves, whether its steps can be repeated, and whether its slots keep apart.

A step that failed is run again on fewer rows. That is right only where the cache is written at the position that a row names.
An engine that appends to its cache gives another answer the second time, with status 200. And a slot's output must be the
same whatever the other slots hold, but for what a kernel does differently with more rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import index
from typing import Any

import numpy as np

from slotwise.worker.outputs import ROWS, on_host, rows_of
from slotwise.worker.ownership import owned
from slotwise.worker.slot_errors import ModelFault
from slotwise.worker.steps.step_engine import StepEngine, StepRow

logger = logging.getLogger(__name__)

TOKENS, OTHER_TOKENS = (1, 0), (0, 0)  # of the steps after an item, and after the one in the other slot
Given = tuple[object, Sequence[object]]  # an item, and what it gives alone
MOST_TRIED = 24
TOLERANCE = 0.02  # of the largest number of an output: kernels add in another order where there are more rows


def objection(engine: StepEngine, item: object, others: Iterable[object] = ()) -> str | None:
    """Why this engine's rows must run one by one; None where they may run together, and again. Raises what the engine raises.

    item: a valid one. others: further ones; the first that gives another output is read beside it, because of two that are the
    same nobody sees where a slot has what is the other one's. Without any it is the item itself. The slots 0, 1 and
    the last one, into which they are read, are free again afterwards.
    """
    try:
        mine = _alone(engine, item, TOKENS)
        for k in (1, 0):
            if not _same(_stepped(engine, StepRow(0, TOKENS[k], k)), mine[k + 1]):
                return "a step that is repeated gives another output"
        if not _same(_read(engine, 0, item), mine[0]):
            return "an item that is read into a slot again gives another output"
        return _mixed(engine, item, mine, others, at_once=True)
    finally:
        _free(engine)


def has_leftovers(engine: StepEngine, item: object, others: Iterable[object]) -> bool:
    """Whether an item gives another output where its slot held another one before.

    item and others: as of `objection`, which has not been asked yet: slot 0 has to be as it was made. The shortest item is read
    before and after the longest, once more, and into a slot that has held nothing: of an engine that gives another output each
    time, there too, nothing is known.
    """
    tried = sorted([item, *islice(others, MOST_TRIED)], key=partial(_length, engine))
    try:
        if (short := next(_tried(engine, tried, TOKENS), None)) is None:
            return False
        next(_tried(engine, reversed(tried), TOKENS), None)
        again = _alone(engine, short[0], TOKENS)
        if all(map(_same, short[1], again)):
            return False
        known = [_alone(engine, short[0], TOKENS, slot) for slot in (0, 1)[: engine.slots]]
        return any(all(map(_same, one, other)) for one in (short[1], again) for other in known)
    finally:
        _free(engine)


def objection_to_slots(engine: StepEngine, item: object, others: Iterable[object]) -> str | None:
    """Why only one stream at a time may be in this engine; None where its slots keep apart as long as each row runs alone.

    item and others: as of `objection`. No step is repeated.
    """
    try:
        return _mixed(engine, item, _alone(engine, item, TOKENS), others, at_once=False)
    except Exception:
        logger.warning("the engine's slots could not be tried", exc_info=True)
        return "it fails where two slots are in use"
    finally:
        _free(engine)


def objection_together(engine: StepEngine, item: object, others: Iterable[object]) -> str | None:
    """Why this engine's items must be read one by one; None where they may be read together. Raises what the engine raises.

    item: a valid one. others: further ones; the first that gives another output is read together with it, because two that are
    the same could be taken for each other. The slots 0 and 1, into which they are read, are free again afterwards.
    """
    if engine.slots < 2:
        return None
    try:
        first = _alone(engine, item, [0])
        tried = _tried(engine, others, [0])
        other, second = next((one for one in tried if not any(map(_same, first, one[1]))), (None, None))
        if second is None:
            return "no two examples give different outputs, so nobody would see one in the other's place"
        made = _rows(engine.prefill_all([0, 1], [owned(item), owned(other)]), 2)
        for slot, alone in enumerate((first, second)):
            if not _same(made[slot], alone[0]) or not _same(_stepped(engine, StepRow(slot, 0, 0)), alone[1]):
                return "an item that is read together with another one gives another output"
    finally:
        _free(engine)
    return None


def _mixed(engine: StepEngine, item: object, mine: Sequence[object], others: Iterable[object], *, at_once: bool) -> str | None:
    """Why an item in slot 0 and another one in slot 1, or in the last one, give other outputs than each alone in slot 0.

    None where they do not. mine: what the item gives alone. at_once: whether rows of both are to run in one step, too.
    """
    if engine.slots < 2:
        return None
    other = next((other for other, given in _tried(engine, others, TOKENS) if not _same(given[-1], mine[-1])), item)
    theirs = _alone(engine, other, OTHER_TOKENS)
    for slot in dict.fromkeys((1, engine.slots - 1)):  # the last one is beside the scratch slot
        pair = (item, mine), (other, theirs)
        if why := _mixed_in(engine, slot, *pair, at_once) or _emptied(engine, slot, *pair):
            return why
    return None


def _mixed_in(engine: StepEngine, slot: int, first: Given, second: Given, at_once: bool) -> str | None:
    """Why the second item in this slot and the first one in slot 0 give other outputs than alone; None where they do not."""
    (item, mine), (other, theirs) = first, second
    rows = [StepRow(0, token, k) for k, token in enumerate(TOKENS)]
    beside = [StepRow(slot, token, k) for k, token in enumerate(OTHER_TOKENS)]
    engine.free(0)
    alone_and_beside = [
        (_read(engine, 0, item), mine[0]),
        (_stepped(engine, rows[0]), mine[1]),
        (_read(engine, slot, other), theirs[0]),
        (_stepped(engine, beside[0]), theirs[1]),
        (_stepped(engine, rows[1]), mine[2]),
        (_stepped(engine, beside[1]), theirs[2]),
    ]
    if not all(_same(*both) for both in alone_and_beside):
        return "the output of a slot is another one where another slot is in use, too"
    if not at_once:
        return None
    together = _outputs(engine, [rows[0], beside[1]]) + _outputs(engine, [beside[1], rows[1]])
    if not all(map(_same, together, (mine[1], theirs[2], theirs[2], mine[2]))):
        return "the output of a slot is another one where another slot has a step, too"
    return None


def _emptied(engine: StepEngine, slot: int, first: Given, second: Given) -> str | None:
    """Why a slot has another output once the other one was read into, or freed; None where it has not. No step is repeated."""
    (item, mine), (other, theirs) = first, second
    own, beside = StepRow(0, TOKENS[0], 0), StepRow(slot, OTHER_TOKENS[0], 0)
    try:
        engine.free(0)
        engine.free(slot)
        given = [
            (_read(engine, slot, other), theirs[0]),
            (_read(engine, 0, item), mine[0]),
            (_stepped(engine, beside), theirs[1]),
        ]
        engine.free(slot)
        given += [(_stepped(engine, own), mine[1]), (_read(engine, slot, other), theirs[0])]
        engine.free(0)
        given.append((_stepped(engine, beside), theirs[1]))
    except Exception:
        logger.warning("the engine fails where another slot is freed", exc_info=True)
        return "it fails where another slot is freed"
    return None if all(_same(*both) for both in given) else "the output of a slot is another one where another slot is freed"


def _alone(engine: StepEngine, item: object, tokens: Sequence[int], slot: int = 0) -> list[object]:
    """What reading an item into a slot gives, and a step for each of these tokens after it."""
    engine.free(slot)
    return [_read(engine, slot, item), *(_stepped(engine, StepRow(slot, token, k)) for k, token in enumerate(tokens))]


def _tried(engine: StepEngine, others: Iterable[object], tokens: Sequence[int]) -> Iterator[tuple[object, list[object]]]:
    """The items that the engine takes, and what each gives alone."""
    for other in others:
        try:
            if _length(engine, other) > engine.longest_item:
                continue
            given = _alone(engine, other, tokens)
        except Exception:  # it was made up, and is none
            continue
        yield other, given


def _length(engine: StepEngine, item: object) -> int:
    """How many tokens an item has; of what is none, more than are taken."""
    try:
        return index(engine.tokens(owned(item)))
    except Exception:
        return engine.longest_item + 1


def _free(engine: StepEngine) -> None:
    for slot in {0, min(1, engine.slots - 1), engine.slots - 1}:
        engine.free(slot)


class AskedOnce(StepEngine):
    """An engine whose steps are not proven to be repeatable: one that would have to be repeated ends its stream.

    That happens where memory runs out in a step. Everything else that is run again begins with a prefill.
    """

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine
        self.slots, self.in_parts = engine.slots, engine.in_parts
        self.longest_item, self.longest_answer = engine.longest_item, engine.longest_answer
        self.asked: dict[int, int] = {}  # the last position of each slot

    def tokens(self, item: Any) -> int:
        return self.engine.tokens(item)

    def prefill(self, slot: int, item: Any) -> Any:
        self.asked.pop(slot, None)
        return self.engine.prefill(slot, item)

    def prefill_part(self, slot: int, item: Any, start: int, stop: int) -> Any:
        self.asked.pop(slot, None)
        return self.engine.prefill_part(slot, item, start, stop)

    def step(self, rows: Sequence[StepRow]) -> Any:
        for row in rows:
            if self.asked.get(row.slot, -1) >= row.position:
                raise ModelFault("the model failed on this input, and cannot be asked again")
            self.asked[row.slot] = row.position
        return self.engine.step(rows)

    def free(self, slot: int) -> None:
        self.asked.pop(slot, None)
        self.engine.free(slot)

    def release(self) -> None:
        self.engine.release()


def _read(engine: StepEngine, slot: int, item: object) -> object:
    own = owned(item)
    if not engine.in_parts:
        return rows_of([on_host(engine.prefill(slot, own))], 1, 1, ROWS)[0]
    length = max(1, index(engine.tokens(own)))
    half = length // 2
    if half:
        engine.prefill_part(slot, own, 0, half)
    return rows_of([on_host(engine.prefill_part(slot, own, half, length))], 1, 1, ROWS)[0]


def _stepped(engine: StepEngine, row: StepRow) -> object:
    return _outputs(engine, [row])[0]


def _outputs(engine: StepEngine, rows: list[StepRow]) -> list[object]:
    return _rows(engine.step(list(rows)), len(rows))


def _rows(outputs: object, b: int) -> list[object]:
    if type(outputs) is list:
        outputs = list(map(on_host, outputs))
    return rows_of(outputs, b, b, ROWS)


def _same(one: object, other: object) -> bool:
    """Whether two outputs are the same but for rounding, part by part. What is no array of numbers must be equal."""
    one, other = on_host(one), on_host(other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and not all(isinstance(part, int | float | np.number) for part in one):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape or a.dtype.kind not in "iufb":
        return bool(a.shape == b.shape and np.array_equal(a, b))
    size = float(np.abs(a.astype(np.float64)).max(initial=0.0))
    return bool(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0) <= TOLERANCE * size)
