"""What one turn does, and who gives way to whom, on a toy engine with a clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from slotwise.worker.padding import Padding
from slotwise.worker.steps.step_engine import StepRow
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream, StreamPiece, TurnLimits
from tests.worker.steps.toy_engine import AddingEngine, Counting, alone, finished, item


class TimedEngine(AddingEngine):
    """Each step takes a second. most_rows, most_streams: how many of a step, and in slots, fit into memory."""

    def __init__(self, slots: int = 4, most_rows: int = 99, most_streams: int = 99) -> None:
        super().__init__(slots)
        self.now, self.most_rows, self.most_streams = 0.0, most_rows, most_streams
        self.prefills: list[Any] = []

    def tokens(self, item: Any) -> int:
        return item.get("length", 1)

    def prefill(self, slot: int, item: Any) -> Any:
        self.prefills.append(item["text"][0])
        return super().prefill(slot, item)

    def step(self, rows: Sequence[StepRow]) -> Any:
        self.now += 1.0
        if len(rows) > self.most_rows or len(self.held) > self.most_streams:
            raise MemoryError
        return super().step(rows)


def made(engine: TimedEngine, **limits: Any) -> StepLoop:
    return StepLoop(engine, Counting(), TurnLimits(**limits), clock=lambda: engine.now)


def pieces_of(loop: StepLoop, turns: int) -> list[Hashable]:
    """Whose pieces came, in order."""
    return [event.id for _ in range(turns) for event in loop.turn() if isinstance(event, StreamPiece)]


def test_where_a_turn_has_time_for_one_row_all_take_turns() -> None:
    loop = made(TimedEngine(most_rows=1), turn_s=0.5)
    loop.offer([Stream(i, item(i, tokens=30)) for i in range(4)])
    pieces_of(loop, 20)
    came = pieces_of(loop, 40)
    assert max(came.count(i) for i in range(4)) - min(came.count(i) for i in range(4)) <= 2
    assert min(came.count(i) for i in range(4)) >= 5


def test_somebody_joins_although_the_steps_take_all_the_time() -> None:
    loop = made(TimedEngine(), turn_s=0.5)
    loop.offer([Stream("long", item(1, tokens=50))])
    pieces_of(loop, 2)
    loop.offer([Stream("new", item(2)), Stream("newer", item(3))])
    assert "new" in pieces_of(loop, 1)
    assert "newer" in pieces_of(loop, 1)


def test_a_long_prompt_is_made_up_for_while_others_decode() -> None:
    engine = TimedEngine()
    loop = made(engine, turn_s=1e9, prefill_tokens=10)
    loop.offer([Stream(0, item(0, tokens=20)), Stream("long", item(1, tokens=20, length=25)), Stream("next", item(2))])
    seen = []
    for _ in range(4):
        loop.turn()
        seen.append(list(engine.prefills))
    assert seen == [[0], [0, 1], [0, 1], [0, 1, 2]], "fifteen tokens too many are a turn and a half without a prefill"
    engine.prefills.clear()
    other = made(engine, turn_s=1e9, prefill_tokens=10)
    other.offer([Stream("long", item(1, tokens=1, length=99)), Stream("next", item(2))])
    pieces_of(other, 2)
    assert engine.prefills == [1, 2], "where nobody decodes, nobody is held up"


def test_a_parked_stream_keeps_its_slot_until_it_is_needed() -> None:
    engine = TimedEngine(2)
    loop = made(engine, parked=1)
    loop.offer([Stream(0, item(1, tokens=6)), Stream(1, item(2, tokens=9))])
    loop.turn()
    loop.hold(0)
    assert pieces_of(loop, 2) == [1, 1]
    loop.go_on(0)
    assert pieces_of(loop, 1) == [0, 1]
    assert engine.prefills == [1, 2], "its cache was kept"
    loop.hold(0)
    loop.offer([Stream(2, item(3))])
    assert 2 in pieces_of(loop, 1), "a slot was needed"
    loop.hold(1)
    loop.go_on(0)
    loop.go_on(1)
    assert {key: status for key, (_, status) in finished(loop).items()} == {0: 200, 1: 200, 2: 200}
    assert engine.prefills[:4] == [1, 2, 3, 1]


def test_where_memory_runs_out_a_parked_one_gives_way_then_the_newest() -> None:
    engine = TimedEngine(4)
    loop = made(engine, turn_s=1e9)
    loop.offer([Stream(i, item(i, tokens=12)) for i in range(4)])
    pieces_of(loop, 2)
    loop.hold(1)
    engine.most_streams = 3
    loop.turn()
    assert [one.stream.id for one in loop.open.values() if one.slot is not None] == [0, 2, 3]
    engine.most_streams = 2
    loop.turn()
    assert [one.stream.id for one in loop.open.values() if one.slot is not None] == [0, 2]
    loop.go_on(1)
    ends = finished(loop)
    assert {key: status for key, (_, status) in ends.items()} == dict.fromkeys(range(4), 200)


def test_a_row_alone_is_run_to_its_end() -> None:
    """With rows that are filled up, one that does not fit takes several calls: each turn has time for one."""
    engine = TimedEngine(4, most_rows=1)
    loop = StepLoop(engine, Counting(), TurnLimits(turn_s=0.5), Padding("static", 4), lambda: engine.now)
    loop.offer([Stream(0, item(3))])
    assert finished(loop) == {0: (alone([3]), 200)}


class ReadingEngine(TimedEngine):
    """Reads several items at once. reads: how many each time. listed: its outputs are a list."""

    together = True

    def __init__(self, slots: int = 8, *, listed: bool = False) -> None:
        super().__init__(slots)
        self.reads: list[int] = []
        self.listed = listed

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        self.reads.append(len(slots))
        outputs = [super(ReadingEngine, self).prefill(*each) for each in zip(slots, items, strict=True)]
        return outputs if self.listed else np.stack(outputs)


def test_who_comes_while_others_decode_is_read_together_with_who_comes_next() -> None:
    engine = ReadingEngine()
    loop = made(engine, turn_s=1e9, gather_turns=3)
    loop.offer([Stream(i, item(i, tokens=30)) for i in range(3)])
    loop.turn()
    assert engine.reads == [3], "nobody decodes, so nobody waits"
    for turn in range(1, 6):
        loop.offer([Stream(10 + turn, item(turn, tokens=30))])
        loop.turn()
    assert engine.reads == [3, 3], "the second call waited for three turns"
    loop.turn()
    assert engine.reads == [3, 3, 2]
    assert {status for _, status in finished(loop).values()} == {200}


@pytest.mark.parametrize("listed", [False, True])
def test_an_item_that_cannot_be_read_costs_who_is_read_with_it_nothing(listed: bool) -> None:
    engine = ReadingEngine(listed=listed)
    loop = made(engine, turn_s=1e9)
    loop.offer([Stream(i, item(i, **({"raise": ValueError("a secret")} if i == 2 else {}))) for i in range(5)])
    assert finished(loop) == {i: ("", 500) if i == 2 else (alone([i]), 200) for i in range(5)}


def test_what_gives_another_answer_read_together_is_read_one_by_one(caplog: Any) -> None:
    class Mixing(ReadingEngine):
        def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
            return super().prefill_all(slots, items) + len(slots)

    engine = Mixing()
    loop = StepLoop.start(engine, Counting(), TurnLimits(turn_s=1e9))
    assert "items are read one by one" in caplog.text
    loop.offer([Stream(i, item(i)) for i in range(3)])
    assert finished(loop) == {i: (alone([i]), 200) for i in range(3)}
