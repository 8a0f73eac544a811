"""An engine whose steps cannot be repeated, or whose slots touch each other, is known before it serves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from slotwise.worker.engines import samples
from slotwise.worker.steps.repeatable import objection, objection_to_slots, objection_together
from slotwise.worker.steps.step_engine import StepRow
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream
from tests.worker.steps.toy_engine import AddingEngine, Counting, finished, item

ITEM = item(3, 4)
OTHER: dict[str, Any] = {**ITEM, "text": [5, 9]}
MIXES = "the output of a slot is another one where another slot is in use, too"

FREED = "the output of a slot is another one where another slot is freed"


class Appends(AddingEngine):
    """Its cache grows with each step, whatever position the row names."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        for row in rows:
            self.held[row.slot].append(row.token + 1)
        return np.array([[float(sum(self.held[row.slot]))] for row in rows])


class ReadsOnTop(AddingEngine):
    """A prefill leaves what the slot held."""

    def prefill(self, slot: int, item: Any) -> Any:
        before = sum(self.held.get(slot, ()))
        output = super().prefill(slot, item)
        self.held[slot] = [int(output[0]) + before]
        return output + before


class Normalises(AddingEngine):
    """An output depends on what the others of its step give."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        outputs = super().step(rows)
        return outputs / outputs.max()


class OneCache(AddingEngine):
    """All slots have one cache, written at the position that a row names."""

    def prefill(self, slot: int, item: Any) -> Any:
        return super().prefill(0, item)

    def step(self, rows: Sequence[StepRow]) -> Any:
        return super().step([row._replace(slot=0) for row in rows])


class KeptOnce(AddingEngine):
    """Keeps what it has read of an item once, and not for each slot."""

    def prefill(self, slot: int, item: Any) -> Any:
        output = super().prefill(slot, item)
        self.source = int(output[0])
        return output

    def step(self, rows: Sequence[StepRow]) -> Any:
        for row in rows:
            self.held[row.slot][0] = self.source
        return super().step(rows)


class ForgetsTokens(AddingEngine):
    """A prefill empties what every other slot was given since its own."""

    def prefill(self, slot: int, item: Any) -> Any:
        self.held = {other: [held[0]] + [0] * (len(held) - 1) for other, held in self.held.items()}
        return super().prefill(slot, item)


class FirstSlots(AddingEngine):
    """Every slot's steps see what slot 0 has read."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        for row in rows:
            self.held[row.slot][0] = self.held[0][0]
        return super().step(rows)


class OneCacheTooFew(AddingEngine):
    """The last slot has the first one's cache."""

    def prefill(self, slot: int, item: Any) -> Any:
        return super().prefill(slot % (self.slots - 1), item)

    def step(self, rows: Sequence[StepRow]) -> Any:
        return super().step([row._replace(slot=row.slot % (self.slots - 1)) for row in rows])


class FreesAll(AddingEngine):
    """To free a slot empties all."""

    def free(self, slot: int) -> None:
        self.held = {other: [0] for other in self.held if other != slot}


class FreesAllAndFails(AddingEngine):
    """To free a slot lets go of all."""

    def free(self, slot: int) -> None:
        self.held.clear()


class FirstEmptiesAll(AddingEngine):
    """Whoever is read into slot 0 empties the others."""

    def prefill(self, slot: int, item: Any) -> Any:
        self.held = {other: held if slot else [0] for other, held in self.held.items()}
        return super().prefill(slot, item)


class InParts(AddingEngine):
    """Reads an item in parts."""

    in_parts = True

    def tokens(self, item: Any) -> int:
        return len(item["text"])

    def prefill_part(self, slot: int, item: Any, start: int, stop: int) -> Any:
        self.held[slot] = [(self.held[slot][0] if start else 0) + sum(item["text"][start:stop])]
        return np.array([float(self.held[slot][0]), 0.0])


class Together(AddingEngine):
    """Reads several items at once. mixes: so that each has something of the last one."""

    together = True

    def __init__(self, mixes: float) -> None:
        super().__init__()
        self.mixes = mixes

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        made = [self.prefill(slot, item) for slot, item in zip(slots, items, strict=True)]
        return [one + self.mixes * (i > 0) for i, one in enumerate(made)]  # a list of arrays is taken, too


class Swaps(Together):
    """Gives each item's output in the other one's place."""

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        return super().prefill_all(slots, items)[::-1]


class SwapsSlots(Together):
    """Reads each item into the other one's slot."""

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        return super().prefill_all(slots[::-1], items)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (AddingEngine(), None),
        (AddingEngine(slots=1), None),
        (InParts(), None),
        (Together(0.0), None),
        (Appends(), "a step that is repeated gives another output"),
        (ReadsOnTop(), "an item that is read into a slot again gives another output"),
        (Normalises(), "the output of a slot is another one where another slot has a step, too"),
        (OneCache(), MIXES),
        (KeptOnce(), MIXES),
        (ForgetsTokens(), MIXES),
        (FirstSlots(), MIXES),
        (OneCacheTooFew(), MIXES),
        (FreesAll(), FREED),
        (FreesAllAndFails(), "it fails where another slot is freed"),
        (FirstEmptiesAll(), FREED),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, AddingEngine) else "",
)
def test_what_may_not_run_together_is_told_and_no_slot_is_left(engine: AddingEngine, said: str | None) -> None:
    assert objection(engine, ITEM, ["no item", ITEM, OTHER]) == said
    assert engine.held == {}
    assert objection(engine, item(3), [OTHER]) == said, "an item of one token has no first half"
    assert engine.held == {}
    assert ITEM["text"] == [3, 4]


def named(output: Any) -> Any:
    return {"logits": output, "chance": np.float32(output[0]), "said": "so"}


def tensors(output: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(output), (torch.from_numpy(output[:1]), None)


@pytest.mark.parametrize("parts", [named, tensors])
@pytest.mark.parametrize(
    ("kind", "said"), [(AddingEngine, None), (Appends, "a step that is repeated gives another output"), (OneCache, MIXES)]
)
def test_several_outputs_a_row_are_looked_at_one_by_one(parts: Any, kind: type[AddingEngine], said: str | None) -> None:
    class Several(kind):  # type: ignore[misc, valid-type]
        def prefill(self, slot: int, item: Any) -> Any:
            return parts(super().prefill(slot, item))

        def step(self, rows: Sequence[StepRow]) -> Any:
            return list(map(parts, super().step(rows)))

    assert objection(Several(), ITEM, [OTHER]) == said


class AppendsToOne(Appends):
    """Its cache grows, and all slots have one."""

    def prefill(self, slot: int, item: Any) -> Any:
        return super().prefill(0, item)

    def step(self, rows: Sequence[StepRow]) -> Any:
        return super().step([row._replace(slot=0) for row in rows])


class Breaks(AddingEngine):
    """Holds one item only."""

    def prefill(self, slot: int, item: Any) -> Any:
        self.held.clear()
        return super().prefill(slot, item)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (AddingEngine(), None),
        (AppendsToOne(slots=1), None),
        (Appends(), None),
        (ReadsOnTop(), None),
        (Normalises(), None),
        (AppendsToOne(), MIXES),
        (OneCache(), MIXES),
        (OneCacheTooFew(), MIXES),
        (KeptOnce(), MIXES),
        (Breaks(), "it fails where two slots are in use"),
        (FreesAll(), FREED),
        (FreesAllAndFails(), "it fails where another slot is freed"),
        (FirstEmptiesAll(), FREED),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, AddingEngine) else "",
)
def test_slots_that_do_not_keep_apart_even_one_row_a_call_are_told(engine: AddingEngine, said: str | None) -> None:
    assert objection_to_slots(engine, ITEM, [OTHER]) == said
    assert engine.held == {}


@pytest.mark.parametrize("kind", [AppendsToOne, OneCache, KeptOnce, FreesAll])
def test_streams_of_an_engine_that_mixes_its_slots_have_what_they_have_alone(
    kind: type[AddingEngine], caplog: pytest.LogCaptureFixture
) -> None:
    def given(*numbers: int) -> dict[Hashable, tuple[str, int]]:
        loop = StepLoop.start(kind(), Counting(ITEM))
        loop.offer([Stream(number, item(number, tokens=5)) for number in numbers])
        return finished(loop)

    assert given(100, 1000) == given(100) | given(1000)
    assert "streams run one after the other, in one slot: " in caplog.text


def test_without_another_item_the_example_is_read_into_both_slots() -> None:
    assert objection(AddingEngine(), ITEM) is None
    assert objection(OneCache(), ITEM) == MIXES
    assert objection(KeptOnce(), ITEM) is None, "nobody sees whose it is"


def test_an_item_that_is_too_long_is_not_tried() -> None:
    class Short(InParts):
        longest_item = 2

        def prefill_part(self, slot: int, item: Any, start: int, stop: int) -> Any:
            assert stop <= self.longest_item
            return super().prefill_part(slot, item, start, stop)

    engine = Short()
    assert objection(engine, ITEM, [item(1, 2, 3), OTHER]) is None


def test_what_may_not_be_read_together_is_told() -> None:
    assert objection_together(Together(0.0), ITEM, [OTHER]) is None
    alone = Together(1.0)
    alone.slots = 1
    assert objection_together(alone, ITEM, [OTHER]) is None, "of one slot there is nobody to be read together with"
    said = "an item that is read together with another one gives another output"
    for wrong in (Together(1.0), Swaps(0.0), SwapsSlots(0.0)):
        assert objection_together(wrong, ITEM, [OTHER]) == said
        assert wrong.held == {}
    for others in ([], [ITEM], ["no item"]):
        assert str(objection_together(Together(0.0), ITEM, others)).startswith("no two examples give different outputs")


class KeepsTheLongest(AddingEngine):
    """A slot's steps see as much as was ever read into it. empties: whether `free` forgets that."""

    def __init__(self, slots: int = 4, *, empties: bool = False) -> None:
        super().__init__(slots)
        self.most: dict[int, int] = {}
        self.empties = empties

    def tokens(self, item: Any) -> int:
        return len(item["text"])

    def prefill(self, slot: int, item: Any) -> Any:
        self.most[slot] = max(self.most.get(slot, 0), len(item["text"]))
        return super().prefill(slot, item)

    def step(self, rows: Sequence[StepRow]) -> Any:
        slots = [row.slot for row in rows]
        return super().step(rows) + [[self.most[slot]] for slot in slots]

    def free(self, slot: int) -> None:
        super().free(slot)
        if self.empties:
            self.most.pop(slot, None)


class Draws(KeepsTheLongest):
    """Gives another output each time."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        return super().step(rows) + len(self.calls)


class AddsUp(KeepsTheLongest):
    """A slot's steps see all that was ever read into it: another output each time, and none that comes again."""

    def prefill(self, slot: int, item: Any) -> Any:
        before = self.most.get(slot, 0)
        output = super().prefill(slot, item)
        self.most[slot] = before + len(item["text"])
        return output


def test_an_engine_whose_slots_add_up_what_they_held_does_not_start() -> None:
    with pytest.raises(ValueError, match="what a slot held before"):
        StepLoop.start(AddsUp(), Counting(ITEM))


class FailsTheSecondTime(AddingEngine):
    def prefill(self, slot: int, item: Any) -> Any:
        output = super().prefill(slot, item)
        self.prefill = None  # type: ignore[assignment, method-assign]
        return output


def test_an_engine_that_fails_on_whatever_comes_second_does_not_start_and_its_error_is_said() -> None:
    with pytest.raises(TypeError, match="not callable"):
        StepLoop.start(FailsTheSecondTime(), Counting(ITEM))


@pytest.mark.parametrize("slots", [1, 4])
def test_an_engine_whose_slots_keep_what_they_held_does_not_start(slots: int) -> None:
    author = Counting(ITEM)
    author.others = lambda: [item(1, 2, 3, 4, 5)]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="what a slot held before"):
        StepLoop.start(KeepsTheLongest(slots), author)
    assert StepLoop.start(KeepsTheLongest(slots, empties=True), author).engine.slots == slots
    author.others = lambda: ["no item"]  # type: ignore[list-item, method-assign, return-value]
    StepLoop.start(KeepsTheLongest(slots), author)
    StepLoop.start(Draws(slots), author)


def test_token_ids_without_the_last_one_are_another_item() -> None:
    ids = {"ids": np.array([[1, 2]]), "name": "a", "pixels": np.ones(2), "one": [1], "flags": [True, False]}
    assert {name: np.size(part) for name, part in samples.shorter(ids).items()} == {
        "ids": 1, "name": 1, "pixels": 2, "one": 1, "flags": 2
    }  # fmt: skip
    other = samples.shorter(ITEM)
    assert other == {**ITEM, "text": [3]}
    assert ITEM["text"] == [3, 4]
    assert objection(KeptOnce(), ITEM, [ITEM, other]) == MIXES
