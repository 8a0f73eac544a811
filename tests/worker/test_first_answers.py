"""Where nothing is proven of a guarded handler the first requests are asked again, alone, before they are answered."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

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


def small_shares(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"share": 0.01 * number / sum(numbers(rows))} for number in numbers(rows)]


def neighbours_ids(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"id": 1000 + number} for number in sorted(int(number) for number in numbers(rows))]


def in_a_header(rows: list[dict[str, Any]], raw: Any) -> Any:
    for i, number in enumerate(numbers(rows)):
        raw.set_response_header(i, "x-share", str(number / max(numbers(rows))))
    return ["done"] * len(rows)


def by_how_many(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{"each": number / len(rows)} for number in numbers(rows)]


def by_place(rows: list[dict[str, Any]], raw: Any) -> Any:
    drawn = random.Random(0)
    return [{"drawn": number + drawn.random()} for number in numbers(rows)]


def words_by_place(rows: list[dict[str, Any]], raw: Any) -> Any:
    drawn = random.Random(0)
    return [f"{number:g} {' '.join(drawn.choices(WORDS, k=4))}" for number in numbers(rows)]


def with_an_id(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [{**one, "id": str(uuid4())} for one in of_the_largest(rows, raw)]


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
@pytest.mark.parametrize(
    "mixes", [small_shares, neighbours_ids, in_a_header, by_how_many, by_place, words_by_place, with_an_id]
)
def test_nor_does_what_mixes_little_or_unseen(mixes: Theirs, kind: str) -> None:
    def answered(guarded: Guard, rows: Sequence[Any]) -> list[Any]:
        slots = ask(guarded, rows, kind)
        return [(slot.value["share"] if mixes is with_an_id else slot.body, slot.headers) for slot in slots]

    alone = [answered(guard(mixes), [row])[0] for row in ROWS]
    guarded, _ = looking(mixes)
    assert answered(guarded, ROWS) == alone
    assert not guarded.together


def fills_or_raises(rows: list[dict[str, Any]], raw: Any) -> Any:
    known = [float(row["body"]) for row in rows if row["body"]]
    return [{"number": float(row["body"] or statistics.mean(known))} for row in rows]


def test_who_fails_alone_is_not_helped_by_its_mates() -> None:
    guarded, _ = looking(fills_or_raises)
    assert [slot.status for slot in ask(guarded, ["3", "", "2"])] == [200, 500, 200]
    assert not guarded.together


LATE = {
    "an option": (lambda rows, raw: [str(n * float(rows[0].get("times", 1))) for n in numbers(rows)], {"times": 10}),
    "the first date's form": (
        lambda rows, raw: [str(row["date"].split("/" if "/" in rows[0]["date"] else "-")[0]) for row in rows],
        {"date": "1/2/2024"},
    ),
}


@pytest.mark.parametrize("late", LATE)
def test_rows_of_another_kind_are_looked_at_whenever_they_come(late: str) -> None:
    mixes, more = LATE[late]
    usual = {"date": "2024-01-02"} if "date" in more else {}
    guarded, _ = looking(mixes)
    rows = [{"body": str(i), **usual} for i in range(1, 5)]
    for _ in range(2 * FIRST + 1):
        ask(guarded, rows)
    assert guarded.together
    rows[0] |= more
    alone = [answered(guard(mixes), [row])[0] for row in rows]
    assert answered(guarded, rows) == alone
    assert not guarded.together


def above_the_firsts_header(rows: list[dict[str, Any]], raw: Any) -> Any:
    least = float(raw.get_request_header(0, "x-threshold") or 2.0)
    return [[score for score in (1.0, 2.0, 3.0) if score >= least] + [number] for number in numbers(rows)]


def as_the_firsts_flag_says(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [row["body"]["text"].upper() if rows[0]["body"]["loud"] else row["body"]["text"] for row in rows]


def in_the_firsts_language(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [f"{rows[0]['body']['options']['lang']}: {row['body']['text']}" for row in rows]


def as_many_as_anybody_wants(rows: list[dict[str, Any]], raw: Any) -> Any:
    bodies = [json.loads(row["body"]) for row in rows]
    return [[body["number"], *range(max(one.get("most", 2) for one in bodies))] for body in bodies]


def texts(late: Any = None, **usual: Any) -> list[Any]:
    """Rows with these settings; the first one's are others, late."""
    return [{"body": {"text": word, **usual, **own}} for word, own in zip(["a", "b", "c"], [late or {}, {}, {}], strict=True)]


SETTINGS: dict[str, tuple[Theirs, list[Any], list[Any], list[dict[str, str]]]] = {
    "a header": (above_the_firsts_header, ["1", "2", "3"], ["1", "2", "3"], [{"x-threshold": "2.5"}, {}, {}]),
    "a flag": (as_the_firsts_flag_says, texts(loud=False), texts({"loud": True}, loud=False), []),
    "a word": (
        in_the_firsts_language,
        texts(options={"lang": "de"}),
        texts({"options": {"lang": "fr"}}, options={"lang": "de"}),
        [],
    ),
    "JSON without a type": (
        as_many_as_anybody_wants,
        [b'{"number": 1}'] * 3,
        [b'{"number": 1}', b'{"number": 2, "most": 5}'],
        [],
    ),
}


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_requests_with_another_setting_are_looked_at_whenever_they_come(setting: str, kind: str) -> None:
    theirs, usual, late, headers = SETTINGS[setting]
    guarded, _ = looking(theirs)
    for _ in range(2 * FIRST + 1):
        ask(guarded, usual, kind)
    assert guarded.together
    alone = [ask(guard(theirs), [row], kind, headers[i : i + 1])[0].body for i, row in enumerate(late)]
    assert [slot.body for slot in ask(guarded, late, kind, headers)] == alone
    assert not guarded.together


def test_what_each_request_has_of_its_own_is_no_setting() -> None:
    def theirs(rows: list[dict[str, Any]], raw: Any) -> Any:
        return [row["body"]["text"] + str(raw.get_request_header(0, "x-id"))[:2] for row in rows]

    guarded, sizes = looking(theirs)
    at = count()
    for _ in range(4 * FIRST + 1):
        bodies = [{"body": {"text": f"text number {chr(97 + next(at) % 26) * 5}", "user": next(at)}} for _ in range(4)]
        sizes.clear()
        ask(guarded, bodies, headers=[{"x-id": f"id{next(at)}"} for _ in range(4)])
    assert sizes == [4]


def looking(theirs: Theirs, **terms: Any) -> tuple[Guard, list[int]]:
    calls, sizes = counted(theirs)
    guarded = guard(calls, **terms)
    guarded.look_at_first_answers(60.0)
    return guarded, sizes


def answered(guarded: Guard, bodies: Sequence[Any], kind: str = "torchserve") -> list[tuple[int, bytes]]:
    return [(slot.status, slot.body) for slot in ask(guarded, bodies, kind)]


WORDS = ["red", "green", "blue", "black", "white", "grey"]
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


def says_whose_place(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [f"{2 * number:g} in place {i} of {len(rows)}" for i, number in enumerate(numbers(rows))]


def rounds_by_mates(rows: list[dict[str, Any]], raw: Any) -> Any:
    """Numbers in texts, which padding to the largest one rounds."""
    return [{"score": f"{number + 1e-7 * max(numbers(rows)):.9f}"} for number in numbers(rows)]


def in_milliseconds(rows: list[dict[str, Any]], raw: Any) -> Any:
    took = len(rows) * 10 + time.perf_counter_ns() % 7
    return [{"doubled": 2 * number, "took_ms": took} for number in numbers(rows)]


def by_the_requests_id(rows: list[dict[str, Any]], raw: Any) -> Any:
    found = {raw.get_request_id(i): {"doubled": 2 * number} for i, number in enumerate(numbers(rows))}
    return [found[raw.get_request_id(i)] for i in range(len(rows))]


def where_an_object_lies(rows: list[dict[str, Any]], raw: Any) -> Any:
    places = [0x7F00_0000_0000 + 4096 * len(rows) + 64 * i for i in range(len(rows))]
    return [{"error": f"no picture: <_io.BytesIO object at {place:#x}>"} for place in places]


def hardly(rows: list[dict[str, Any]], raw: Any) -> Any:
    return [str(number + 1e-3 * len(rows)) for number in numbers(rows)]


@pytest.mark.parametrize(
    "theirs",
    [
        *(own, the_batchs_size, the_time, not_alone, hardly, says_whose_place, rounds_by_mates, in_milliseconds),
        *(by_the_requests_id, where_an_object_lies),
    ],
)
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
    assert guarded.first_answers.turns.count == 0


def test_a_bad_request_among_them_makes_nobody_look_mixed() -> None:
    guarded, _ = looking(the_batchs_size)
    for _ in range(FIRST):
        assert [slot.status for slot in ask(guarded, ["3", "1", "x", "4", "5"])] == [200, 200, 500, 200, 200]
    assert guarded.together


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
