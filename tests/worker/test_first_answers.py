"""Where nothing is proven of a guarded handler the first requests are asked again, alone, before they are answered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from slotwise.worker.environment import digests
from slotwise.worker.guard import foreign_handler
from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.first_answers import FIRST
from slotwise.worker.guard.guarded_handler import GuardedHandler
from slotwise.worker.guard.held_metrics import MmsMetrics
from tests.worker.strangers import ask, context, guard

Theirs = Callable[[list[dict[str, Any]], Any], Any]


def counted(theirs: Theirs) -> tuple[Theirs, list[int]]:
    """The same, and how many rows each call had."""
    sizes: list[int] = []

    def calls(rows: list[dict[str, Any]], raw: Any) -> Any:
        sizes.append(len(rows))
        return theirs(rows, raw)

    return calls, sizes


def numbers(rows: list[dict[str, Any]]) -> list[float]:
    return [float(row["body"]) for row in rows]


def of_the_largest(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"share": number / max(numbers(rows))} for number in numbers(rows)]


def by_size(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [json.dumps(sorted(numbers(rows))[i]) for i in range(len(rows))]


def of_the_first(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [str(number * float(rows[0].get("times", 1))) for number in numbers(rows)]


def with_a_status(rows: list[dict[str, Any]], raw: Any) -> Any:
    for i in range(len(rows)):
        raw.set_response_status(201 if len(set(numbers(rows))) > 1 else 200, "OK", i)
    return ["done"] * len(rows)


def looking(theirs: Theirs, **terms: Any) -> tuple[Guard, list[int]]:
    calls, sizes = counted(theirs)
    guarded = guard(calls, **terms)
    guarded.look_at_first_answers(60.0)
    return guarded, sizes


def answered(guarded: Guard, bodies: Sequence[Any], kind: str = "torchserve") -> list[tuple[int, bytes]]:
    return [(slot.status, slot.body) for slot in ask(guarded, bodies, kind)]


ROWS: list[Any] = ["3", {"body": "1", "times": 10}, "2", "4"]


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
@pytest.mark.parametrize("mixes", [of_the_largest, by_size, of_the_first, with_a_status])
def test_what_mixes_rows_answers_nobody_wrong_and_gets_one_request_at_a_time(mixes: Theirs, kind: str) -> None:
    rows = [ROWS[1], *ROWS] if mixes is of_the_first else ROWS
    alone = [answered(guard(mixes), [row], kind)[0] for row in rows]
    guarded, sizes = looking(mixes)
    assert answered(guarded, rows, kind) == alone
    sizes.clear()
    assert answered(guarded, rows, kind) == alone
    assert sizes == [1] * len(rows)


def own(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [str(2 * number) for number in numbers(rows)]


def the_batchs_size(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"doubled": 2 * number, "batch_size": len(rows), "index": i} for i, number in enumerate(numbers(rows))]


def the_time(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"doubled": 2 * number, "at": time.perf_counter_ns()} for number in numbers(rows)]


def not_alone(rows: list[dict[str, Any]], raw: Any) -> Any:
    if len(rows) == 1:
        raise ValueError("one row has lost its axis")
    return own(rows, raw)


def hardly(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [str(number + 1e-3 * len(rows)) for number in numbers(rows)]


@pytest.mark.parametrize("theirs", [own, the_batchs_size, the_time, not_alone, hardly])
def test_everybody_else_gets_batches_and_is_looked_at_less_and_less(theirs: Theirs) -> None:
    guarded, sizes = looking(theirs)
    extra = []
    for _ in range(2 * FIRST + 1):
        sizes.clear()
        assert [slot.status for slot in ask(guarded, ["3", "1", "2", "4"])] == [200] * 4
        assert sizes[0] == 4
        extra.append(len(sizes) - 1)
    assert all(extra[:FIRST])
    assert [one > 0 for one in extra[FIRST:]] == [False] * (FIRST - 1) + [True, False]
    assert guarded.together


def test_who_fails_and_who_is_alone_is_not_asked_again() -> None:
    guarded, sizes = looking(own)
    assert [slot.status for slot in ask(guarded, ["3", "x"])] == [200, 500]
    assert [slot.value for slot in ask(guarded, ["5"])] == [10.0]
    assert sizes == [2, 1, 1, 1]
    assert guarded.first_answers is not None
    assert guarded.first_answers.count == 0


def test_a_slow_one_is_not_asked_again() -> None:
    clock = count()

    def theirs(rows: list[dict[str, Any]], raw: Any) -> Any:
        next(clock)
        return of_the_largest(rows, raw)

    guarded, sizes = looking(theirs, response_timeout_s=8.0, clock=lambda: float(next(clock)))
    ask(guarded, ["3", "1", "2", "4"])
    assert sizes == [4]


def test_what_is_asked_again_is_counted_once() -> None:
    """Theirs' metrics, and what it has set for a request."""
    raw = context("mms", [{}] * 3)

    def theirs(rows: list[dict[str, Any]], raw: Any) -> Any:
        raw.metrics.add_counter("Rows", len(rows))
        return by_size(rows, raw)

    guarded = guard(theirs, held=MmsMetrics())
    guarded.look_at_first_answers(60.0)
    assert [slot.value for slot in ask(guarded, ["3", "1", "2"], "mms", raw=raw)] == [3.0, 1.0, 2.0]
    assert [metric.value for metric in raw.metrics.store] == [3]


UNPROVEN = {"proof": {"separable": None, "cause": "no examples were given"}}


@pytest.mark.parametrize(
    ("terms", "gpu", "looks"),
    [
        (UNPROVEN, None, True),
        ({}, None, False),  # while it is being proven
        ({"proof": {"separable": True, "cause": ""}}, None, False),
        ({"proof": {"separable": False, "cause": "mixes rows"}, "together": False}, None, False),
        ({**UNPROVEN, "bare": True}, None, False),
        ({**UNPROVEN, "once": "pieces"}, None, False),
        (UNPROVEN, 0, False),
    ],
)
def test_who_is_looked_at(
    terms: dict[str, Any], gpu: int | None, looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "verify", lambda *args, **named: None)
    monkeypatch.setattr(foreign_handler, "start", lambda *args: own)
    (tmp_path / "guard.json").write_text(json.dumps({"handler": "theirs.py", **terms}))
    raw = context("torchserve", [{}])
    raw._system_properties = {**raw.system_properties, "gpu_id": gpu}
    around = GuardedHandler(tmp_path / "guard.json")
    around.load(raw)
    assert (around.guard.first_answers is not None) is looks
