"""An engine that dies costs nobody who was answered, convicts nobody, and ends its worker; and how often a model is asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Settings
from slotwise.worker.batch import MOST_GUILTY, Row, Tally
from slotwise.worker.isolation import Isolation
from slotwise.worker.padding import Padding
from tests.worker.toy import NAN, POISON, Toy, ask, shown, started


class Dying(Toy):
    """Its engine dies when it meets `DEADLY`, unless POISON fails sooner: how, `way` says."""

    DEADLY = 66.0
    has_example = True

    def __init__(self, way: str = "raises", **settings: Any) -> None:
        super().__init__(Settings(**{"batch_size": 8, **settings}))
        self.way, self.dies = way, False

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return self

    def example(self) -> Any:
        return super().example() if self.has_example else None

    def release(self) -> None:
        if self.dies and self.way == "release raises":
            raise RuntimeError("CUDA error: device-side assert triggered")

    def __call__(self, inputs: Any) -> Any:
        self.dies = self.dies or bool((inputs == self.DEADLY).any() and not (inputs == POISON).any())
        if self.dies:
            self.calls.append(inputs)
            if self.way == "NaN":
                return np.full(inputs.shape, np.nan)
            raise RuntimeError("CUDA error")
        return self.double(inputs)


class WithoutExample(Dying):
    has_example = False


@pytest.mark.parametrize("kind", [Dying, WithoutExample])
@pytest.mark.parametrize("way", ["raises", "release raises", "NaN"])
def test_a_dead_engine_ends_its_worker(kind: type[Dying], way: str) -> None:
    handler = started(kind(way))
    assert [answer.code for answer in ask(handler, [[1], [2]])] == [200, 200]
    answers = ask(handler, [[1], [66], [3]])
    assert handler.pipeline.dead
    assert {shown(answer)[1][0] for answer in answers} == {503}, "nobody can say who is to blame"
    assert {shown(answer)[1][0] for answer in ask(handler, [[4]])} == {503}


def test_who_was_answered_before_the_engine_died_keeps_the_answer() -> None:
    class Narrow(Dying):
        max_rows = 2

    answers = ask(started(Narrow()), [[1], [2], [3], [4], [66], [6], [7]])
    assert [shown(answer)[1] for answer in answers] == [[3.0], [5.0], [7.0], [9.0], [503], [503], [503]]


def test_who_fails_after_the_engine_died_in_the_same_group_is_not_convicted() -> None:
    """The first failure is a bad row's, the engine lives; it dies while the halves are tried."""
    handler = started(Dying(batch_size=8))
    answers = ask(handler, [[POISON], [1], [2], [66], [4], [5], [6], [7]])
    assert handler.pipeline.dead
    codes = [shown(answer)[1][0] for answer in answers]
    assert codes[0] == 500, "it failed while the engine lived"
    assert set(codes[3:]) == {503}
    assert all(code in (503, 3.0, 5.0) for code in codes[1:3])


def test_a_row_of_nan_costs_one_look_at_the_engine_and_no_more() -> None:
    handler = started()
    assert shown(ask(handler, [[NAN]])[0])[1] == [500]
    assert (len(handler.calls), handler.pipeline.dead) == (2, False)
    handler.calls.clear()
    assert [shown(answer)[1] for answer in ask(handler, [[NAN], [1]])] == [[500], [3.0]]
    assert len(handler.calls) == 1, "another row shows that it lives"


@pytest.mark.parametrize("bad", range(0, 64, 7))
def test_one_bad_row_of_64_takes_at_most_13_calls(bad: int) -> None:
    handler = started(batch_size=64)
    answers = ask(handler, [[POISON if i == bad else i] for i in range(64)])
    assert [i for i, answer in enumerate(answers) if shown(answer)[1] == [500]] == [bad]
    looks = sum(bool((call == 0).all()) and len(call) == 1 for call in handler.calls)
    assert len(handler.calls) - min(looks, 2) <= 13


@pytest.mark.parametrize("max_rows", [8, 32, 512])
def test_a_request_of_256_bad_rows_costs_seven_others_64_calls_at_most(max_rows: int) -> None:
    class Wide(Toy):
        pass

    Wide.max_rows = max_rows
    handler = started(Wide(Settings(batch_size=8)))
    answers = ask(handler, [[1], [2], [POISON] * 256, [3], [4], [5], [6], [7]])
    assert [shown(answer) for i, answer in enumerate(answers) if i != 2] == [(200, [2.0 * x + 1]) for x in range(1, 8)]
    assert answers[2].code == 500
    assert "16 inputs" in answers[2].value["error"]["message"]
    assert len(handler.calls) <= 64


@pytest.mark.parametrize("guilty", [MOST_GUILTY - 1, MOST_GUILTY])
def test_how_many_bad_rows_a_request_may_have_depends_on_nobody_else(guilty: int) -> None:
    mixed = [POISON if i < guilty * 3 and i % 3 == 0 else float(i) for i in range(64)]
    alone = shown(ask(started(), [mixed])[0])
    together = ask(started(), [[1], mixed, [POISON], mixed, [2]])
    assert shown(together[1]) == shown(together[3]) == alone
    assert [shown(together[i])[1] for i in (0, 2, 4)] == [[3.0], [500], [5.0]]
    assert alone[0] == (200 if guilty < MOST_GUILTY else 500)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_the_half_that_must_be_guilty_is_not_asked_as_a_whole(n: int) -> None:
    asked: list[int] = []

    def attempt(rows: list[Row], size: int) -> None:
        asked.append(len(rows))
        if any(row.item == "bad" for row in rows):
            raise ValueError
        for row in rows:
            row.ran(row.item)

    tally = Tally()
    rows = [Row(i, "bad" if i == n - 1 else "good") for i in range(n)]
    Isolation(attempt, Padding("none", n)).run(rows, tally=tally)
    assert [row.error is None for row in rows] == [True] * (n - 1) + [False]
    assert len(asked) <= math.ceil(math.log2(n)) + 2
    assert tally.guilty == {n - 1: 1}
