"""Theirs catches its own errors, and answers everybody in the batch with the one that it has caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.worker.guard import batches
from tests.worker.strangers import ask, guard

GOOD = [str(i).encode() for i in range(1, 9)]
Theirs = Callable[[list[dict[str, Any]], Any], list[Any]]


def doubled(rows: list[dict[str, Any]]) -> list[Any]:
    return [{"doubled": 2 * json.loads(row["body"])} for row in rows]


def with_a_status(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    try:
        return doubled(rows)
    except Exception:
        context.set_all_response_status(500, "Internal Server Error")
        return ["it did not work"] * len(rows)


def with_the_first_ones_status(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    try:
        return doubled(rows)
    except Exception:
        context.set_response_status(400, "Bad Request")
        return [{"seen": i} for i in range(len(rows))]


def as_a_text(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    try:
        return doubled(rows)
    except Exception as error:
        return [f"Error: {error}"] * len(rows)


def as_an_object(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    try:
        return doubled(rows)
    except Exception as error:
        return [{"result": None, "error": {"text": str(error)}} for _ in rows]


def within_a_list(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    try:
        return doubled(rows)
    except Exception:
        return [["the input is invalid"] for _ in rows]


def of_its_part(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    """It runs four at a time: the others of four have its error."""
    answers: list[Any] = []
    for start in range(0, len(rows), 4):
        try:
            answers += doubled(rows[start : start + 4])
        except Exception as error:
            answers += [{"label": "error", "why": str(error)} for _ in rows[start : start + 4]]
    return answers


@pytest.mark.parametrize(
    "theirs", [with_a_status, with_the_first_ones_status, as_a_text, as_an_object, within_a_list, of_its_part]
)
@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_an_error_that_theirs_has_caught_is_its_own_requests_only(theirs: Theirs, kind: str) -> None:
    guarded = guard(theirs)
    guilty = ask(guarded, [b"x"], kind)[0]
    for places in [{i} for i in range(8)] + [{1, 4, 6}, {0, 7}, set(range(7)), set()]:
        slots = ask(guarded, [b"x" if i in places else body for i, body in enumerate(GOOD)], kind)
        for i, slot in enumerate(slots):
            assert (slot == guilty) if i in places else (slot.status, slot.value) == (200, {"doubled": 2 * (i + 1)})


def at_each_row(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    """It sets each row's own status and error: nobody else has it."""
    answers: list[Any] = []
    for i, row in enumerate(rows):
        try:
            answers += doubled([row])
        except Exception as error:
            context.set_response_status(400, "Bad Request", i)
            answers.append({"error": str(error)})
    return answers


def no_error(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    return [{"label": "ham", "error": None, "failed": 0} for _ in rows]


def empty(rows: list[dict[str, Any]], context: Any) -> list[Any]:
    return [[] for _ in rows]


@pytest.mark.parametrize(("theirs", "bodies"), [(at_each_row, [*GOOD[:3], b"x"]), (no_error, GOOD), (empty, GOOD)])
def test_who_keeps_errors_apart_is_called_once(theirs: Theirs, bodies: list[bytes]) -> None:
    calls: list[int] = []

    def counted(rows: list[dict[str, Any]], context: Any) -> list[Any]:
        calls.append(len(rows))
        return theirs(rows, context)

    ask(guard(counted), bodies)
    assert calls == [len(bodies)]


def test_batches_of_bad_requests_only_are_no_reason_to_ask_one_at_a_time() -> None:
    for theirs in (with_a_status, as_a_text):
        guarded = guard(theirs)
        for _ in range(batches.SINGLY_AFTER):
            ask(guarded, [b"x", b"y"])
        assert guarded.singly == 0
