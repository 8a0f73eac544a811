"""Authors and engines that do things wrong, and what the loop promises one by one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from slotwise.worker.padding import Padding
from slotwise.worker.slot_errors import ModelFault, Unprocessable
from slotwise.worker.steps.step_engine import End, Next, StepRow, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream, StreamEnd, StreamEvent, TurnLimits
from tests.worker.steps.toy_engine import AddingEngine, Counting, alone, finished, item, loop_of


def test_streams_are_what_they_are_alone() -> None:
    loop = loop_of()
    loop.offer([Stream(i, item(i, 3, tokens=1 + i)) for i in range(7)])
    assert finished(loop) == {i: (alone([i, 3], 1 + i), 200) for i in range(7)}


@pytest.mark.parametrize(
    "mistake",
    [
        lambda state: None,
        lambda state: "text",
        lambda state: 3,
        lambda state: Next("3"),  # type: ignore[arg-type]
        lambda state: Next(-1),
        lambda state: Next(10**30, object()),
        lambda state: End(float("inf")),
        lambda state: End({"a": {1, 2}}),
        lambda state: sys.exit(),
        lambda state: state.tokens.append("x") or setattr(state, "random", None) or state.item.clear() or None,
        lambda state: Next,
    ],
)
def test_an_author_who_is_wrong_about_one_stream_harms_no_other(mistake: Callable[[StepState], Any]) -> None:
    class Wrong(Counting):
        def advance(self, state: StepState, output: Any) -> Any:
            if state.item["text"] == [5] and len(state.tokens) == 2:
                return mistake(state)
            return super().advance(state, output)

    loop = loop_of(author=Wrong())
    loop.offer([Stream(i, item(i)) for i in range(4)] + [Stream("bad", item(5))])
    ends = finished(loop)
    assert ends.pop("bad") == ("5 10 ", 500)
    assert ends == {i: (alone([i]), 200) for i in range(4)}


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unprocessable("no"), 422), (SystemExit(1), 500), (ValueError("secret"), 500), (MemoryError(), 507)],
)
def test_a_prefill_that_fails(error: BaseException, status: int) -> None:
    loop = loop_of()
    loop.offer([Stream(0, item(1)), Stream("bad", item(2, **{"raise": error})), Stream(1, item(3))])
    assert finished(loop) == {0: (alone([1]), 200), "bad": ("", status), 1: (alone([3]), 200)}


def test_a_step_that_fails_is_run_again_in_halves() -> None:
    class Poisoned(AddingEngine):
        def step(self, rows: Sequence[StepRow]) -> Any:
            outputs = super().step(rows := list(rows)) if not any(row.token == 6 for row in rows) else None
            return [] if outputs is None else list(outputs)

    engine = Poisoned(8)
    loop = loop_of(engine)
    loop.offer([Stream(i, item(0)) for i in range(7)] + [Stream("bad", item(6))])
    ends = finished(loop)
    assert ends == {**{i: (alone([0]), 200) for i in range(7)}, "bad": ("6 ", 500)}


def test_static_shapes_are_filled_up_by_the_scratch_slot() -> None:
    engine = AddingEngine(4)
    loop = StepLoop.start(engine, Counting(), padding=Padding("static", 4))
    loop.offer([Stream(0, item(1)), Stream(1, item(2)), Stream(2, item(3))])
    engine.calls.clear()
    assert finished(loop) == {i: (alone([i + 1]), 200) for i in range(3)}
    assert {len(call) for call in engine.calls} == {4}
    assert all([row.slot for row in call][-1] == 4 for call in engine.calls)


def test_nothing_is_filled_up_without_an_example() -> None:
    class NoExample(Counting):
        def example(self) -> Any:
            return None

    with pytest.raises(ValueError, match="example"):
        loop_of(author=NoExample(), padding=Padding("static", 4))
    engine = AddingEngine(4)
    loop = StepLoop.start(engine, NoExample())
    loop.offer([Stream(i, item(i)) for i in range(4)])
    assert finished(loop) == {i: (alone([i]), 200) for i in range(4)}
    assert {len(call) for call in engine.calls} == {1}, "nothing is proven, so rows run alone"


class AppendingEngine(AddingEngine):
    """An engine that does not look at positions: it cannot be asked twice."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        self.calls.append(list(rows))
        for row in rows:
            self.held[row.slot].append(row.token + 1)
        return np.array([[float(sum(self.held[row.slot])), 0.0] for row in rows])


class LeakingEngine(AddingEngine):
    """An engine whose rows see each other."""

    def step(self, rows: Sequence[StepRow]) -> Any:
        outputs = super().step(rows := list(rows))
        return outputs + outputs.mean() / 3 if len(outputs) > 1 else outputs


@pytest.mark.parametrize(("kind", "alone_only"), [(AddingEngine, False), (AppendingEngine, True), (LeakingEngine, True)])
def test_an_engine_that_cannot_be_asked_twice_is_asked_once(kind: type[AddingEngine], alone_only: bool) -> None:
    class Example(Counting):
        def example(self) -> Any:
            return item(3, 4)

    engine = kind(3)
    loop = StepLoop.start(engine, Example())
    assert (loop.calls.padding.max_rows == 1) == alone_only
    assert loop.slots.count == 3, "its slots keep apart"
    assert not engine.held
    engine.calls.clear()
    loop.offer([Stream(i, item(i)) for i in range(3)])
    finished(loop)
    assert ({len(call) for call in engine.calls} == {1}) == alone_only


@pytest.mark.parametrize("kind", [AddingEngine, AppendingEngine])
def test_where_memory_runs_out_nobody_gets_a_wrong_answer(kind: type[AddingEngine]) -> None:
    class Small(kind):  # type: ignore[misc, valid-type]
        """Runs out of memory after it has written."""

        def step(self, rows: Sequence[StepRow]) -> Any:
            outputs = super().step(rows := list(rows))
            if sum(map(len, self.held.values())) > 9:
                raise MemoryError
            return outputs

    def right(text: int) -> tuple[str, int]:
        loop = StepLoop.start(kind(1), Counting(example=item(0)))
        loop.offer([Stream(0, item(text, tokens=6))])
        return finished(loop)[0]

    loop = StepLoop.start(Small(3), Counting(example=item(0)))
    loop.offer([Stream(i, item(i, tokens=6)) for i in range(5)])
    ends = finished(loop)
    for i, (text, status) in ends.items():
        whole = right(int(str(i)))
        assert (text, status) == whole or (status == 500 and whole[0].startswith(text) and kind is AppendingEngine)
    assert (500 in {status for _, status in ends.values()}) == (kind is AppendingEngine)


def test_another_worker_goes_on_after_what_was_sent() -> None:
    pieces = tuple(f"{piece} ".encode() for piece in alone([3], 6).split())
    loop = loop_of()
    loop.offer([Stream("a", item(3, tokens=6), sent=pieces[:4])])
    assert finished(loop) == {"a": (b"".join(pieces[4:]).decode(), 200)}
    loop.offer([Stream("other", item(3, tokens=6), sent=(pieces[0], b"not this"))])
    loop.offer([Stream("short", item(3, tokens=2), sent=pieces[:4])])
    assert finished(loop) == {"other": ("", 500), "short": ("", 500)}, "rather an error than two halves of two answers"


def test_an_engine_that_dies_ends_nobody() -> None:
    engine = AddingEngine(4)
    loop = StepLoop.start(engine, Counting())
    loop.offer([Stream(i, item(i)) for i in range(3)])
    events: list[StreamEvent] = loop.turn()
    engine.held.clear()  # whatever it is asked from now on fails
    engine.prefill = lambda slot, item: 1 / 0  # type: ignore[method-assign]
    events += loop.turn()
    assert loop.dead
    assert not any(isinstance(event, StreamEnd) for event in events)
    assert set(loop.open) == {0, 1, 2}, "they go on in another worker"


def test_what_is_too_long() -> None:
    class Sized(AddingEngine):
        longest_item, longest_answer = 3, 2

        def tokens(self, item: Any) -> int:
            if item["text"] == [7]:
                raise ValueError("secret")
            return len(item["text"])

    engine = Sized()
    loop = loop_of(engine)
    loop.offer([Stream("in", item(1, 1, 1, tokens=3)), Stream("long", item(1, 1, 1, 1)), Stream("?", item(7))])
    loop.offer([Stream("answer", item(1, tokens=4))])
    ends = finished(loop)
    assert ends == {"in": (alone([3], 3), 200), "long": ("", 413), "?": ("", 500), "answer": (alone([1], 3), 500)}


def test_one_that_fits_nowhere_leaves_the_others_their_slots() -> None:
    class Small(AddingEngine):
        def step(self, rows: Sequence[StepRow]) -> Any:
            if any(self.held[row.slot][0] == 5 and row.position == 1 for row in rows):
                raise MemoryError
            return super().step(rows)

    loop = loop_of(Small(4))
    loop.offer([Stream("large", item(5)), *(Stream(i, item(i)) for i in range(3))])
    assert finished(loop) == {"large": ("5 10 ", 507), **{i: (alone([i]), 200) for i in range(3)}}
    assert loop.slots.most == 4


def test_limits_that_make_no_sense() -> None:
    for wrong in ({"turn_s": 0}, {"prefill_tokens": 0}, {"parked": -1}, {"slow_readers": "wait"}):
        with pytest.raises(ValueError, match="limits"):
            TurnLimits(**wrong)  # type: ignore[arg-type]
    loop = loop_of()
    loop.offer([Stream(1, item(1))])
    with pytest.raises(ValueError, match="open already"):
        loop.offer([Stream(1, item(1))])
    loop.cancel("nobody")
    loop.hold("nobody")
    loop.go_on("nobody")
    loop.cancel(1)
    assert (loop.turn(), loop.busy) == ([], False)


class InParts(AddingEngine):
    """Reads items in parts."""

    in_parts = True

    def tokens(self, item: Any) -> int:
        return len(item["text"])

    def prefill_part(self, slot: int, item: Any, start: int, stop: int) -> Any:
        before = self.held[slot] if start else [0]
        self.held[slot] = [before[0] + sum(item["text"][start:stop])]
        return self.held[slot] * 2


def test_an_item_is_read_in_parts() -> None:
    engine = InParts(3)
    loop = StepLoop.start(engine, Counting(), TurnLimits(prefill_tokens=2), Padding("bucketed", 3))
    assert loop.calls.padding.max_rows == 3
    loop.offer([Stream(0, item(1, 2, 3, 4, 5)), Stream(1, item(6)), Stream(2, item(7, 8))])
    assert loop.turn() == []
    assert finished(loop) == {0: (alone([15]), 200), 1: (alone([6]), 200), 2: (alone([15]), 200)}


def test_an_item_that_cannot_be_copied_is_its_own_error() -> None:
    loop = loop_of()
    loop.offer([Stream("bad", item(1, lock=threading.Lock())), Stream(0, item(2))])
    assert finished(loop) == {"bad": ("", 500), 0: (alone([2]), 200)}


def test_an_engine_whose_example_gives_nan_does_not_start() -> None:
    class Sick(AddingEngine):
        def prefill(self, slot: int, item: Any) -> Any:
            return super().prefill(slot, item) * np.nan

    with pytest.raises(ModelFault, match="the output of the example is not finite"):
        StepLoop.start(Sick(), Counting())


def test_what_fails_to_be_released_or_freed_harms_nobody() -> None:
    class Stuck(AddingEngine):
        def release(self) -> None:
            raise OSError("the driver is gone")

        def free(self, slot: int) -> None:
            raise OSError("the driver is gone")

    loop = loop_of(Stuck())
    loop.offer([Stream("bad", item(2, **{"raise": ValueError()})), *(Stream(i, item(i)) for i in range(9))])
    assert finished(loop) == {"bad": ("", 500), **{i: (alone([i]), 200) for i in range(9)}}
