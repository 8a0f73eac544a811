"""The promises of the heart, as properties: whatever mix of strangers' requests shares a batch."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import ModelFault, Settings, SlotError
from slotwise.worker.padding import KINDS
from tests.worker.toy import HUGE, MUTE, NAN, POISON, Toy, ask, expected, shown, started

good = st.integers(0, 10**6)
faulty = st.sampled_from(["bad", POISON, NAN, MUTE, HUGE])
body = st.one_of(
    st.lists(good, min_size=1, max_size=1),  # one row
    st.lists(st.one_of(good, good, faulty), max_size=5),  # none or many, some of them bad
    st.sampled_from([b"", b"{", b"\xff\xfe", b"[1", "text", 7, None, {"a": 1}]),  # not a request at all
)
bodies = st.lists(body, min_size=1, max_size=12)
handlers = st.builds(
    lambda kind, b, rows: started(Toy(Settings(batch_size=b, padding=kind))) if rows is None else _narrow(kind, b, rows),
    st.sampled_from(KINDS),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 4)),
)


def _narrow(kind: str, batch_size: int, rows: int) -> Toy:
    """A toy whose groups are smaller than its batches (micro-batches)."""

    class Narrow(Toy):
        max_rows = rows

    return started(Narrow(Settings(batch_size=batch_size, padding=kind)))


def _answer(handler: Toy, sent: list[Any]) -> list[Any]:
    return [shown(answer) for answer in ask(handler, sent)]


def _owed(sent: list[Any]) -> list[Any]:
    return [expected(None if isinstance(b, bytes) else b) for b in sent]


@given(handlers, bodies)
def test_every_request_is_answered_once_in_order_from_its_own_rows(handler: Toy, sent: list[Any]) -> None:
    assert _answer(handler, sent) == _owed(sent)


@given(handlers, bodies)
def test_a_batch_answers_as_each_request_alone(handler: Toy, sent: list[Any]) -> None:
    together = _answer(handler, sent)
    assert together == [_answer(handler, [one])[0] for one in sent]


@given(handlers, bodies, body, st.data())
def test_one_more_request_anywhere_changes_no_other_answer(handler: Toy, sent: list[Any], more: Any, data: Any) -> None:
    where = data.draw(st.integers(0, len(sent)))
    with_it = _answer(handler, [*sent[:where], more, *sent[where:]])
    assert with_it[:where] + with_it[where + 1 :] == _answer(handler, sent)


@given(handlers, bodies, st.data())
def test_whoever_leaves_at_any_moment_changes_no_other_answer(handler: Toy, sent: list[Any], data: Any) -> None:
    gone: set[int] = set()
    leaves = data.draw(st.lists(st.integers(-1, len(sent) - 1), max_size=20))  # who does, each time that anybody looks

    def look() -> set[int]:
        if leaves and (slot := leaves.pop()) >= 0:
            gone.add(slot)
        return gone

    handler.pipeline.gone = look
    answers = _answer(handler, sent)
    handler.pipeline.gone = tuple
    for i, (answer, owed) in enumerate(zip(answers, _owed(sent), strict=True)):
        if i not in gone or answer[0] != 200:
            assert answer == owed or (i in gone and answer[0] == 504)
        else:
            assert all(record in (504, own) for record, own in zip(answer[1], owed[1], strict=True))


@given(handlers, bodies, st.randoms(use_true_random=False))
def test_permuting_requests_permutes_answers(handler: Toy, sent: list[Any], random: Any) -> None:
    order = list(range(len(sent)))
    random.shuffle(order)
    straight = _answer(handler, sent)
    assert _answer(handler, [sent[i] for i in order]) == [straight[i] for i in order]


@given(handlers, bodies, bodies)
def test_nothing_survives_from_one_batch_to_the_next(handler: Toy, first: list[Any], second: list[Any]) -> None:
    before = {k: v for k, v in vars(handler).items() if k != "calls"}
    _answer(handler, first)
    assert {k: v for k, v in vars(handler).items() if k != "calls"} == before
    assert _answer(handler, second) == _owed(second)


@given(st.sampled_from(KINDS), st.integers(1, 12), bodies)
def test_what_stands_in_padding_rows_changes_nothing(kind: str, batch_size: int, sent: list[Any]) -> None:
    class NanPadded(Toy):
        def collate(self, items: list[Any]) -> Any:
            rows = self.__dict__.get("rows", 1)
            return np.stack([*items[:rows], *[np.full(1, np.nan)] * (len(items) - rows)])

    handler = started(NanPadded(Settings(batch_size=batch_size, padding=kind)))
    attempt = handler.isolation.attempt

    def counted(rows: list[Any], size: int) -> None:
        vars(handler)["rows"] = len(rows)
        attempt(rows, size)

    handler.isolation.attempt = counted
    assert _answer(handler, sent) == _owed(sent)


@given(handlers, st.lists(st.sampled_from([b"", b"no", "text", [], ["bad"], ["bad", "bad"]]), min_size=1, max_size=9))
def test_an_all_bad_batch_never_calls_the_model(handler: Toy, sent: list[Any]) -> None:
    handler.calls.clear()
    _answer(handler, sent)
    assert handler.calls == []


@given(handlers, bodies)
def test_no_slot_shows_what_went_wrong_inside_or_whom_else_it_served(handler: Toy, sent: list[Any]) -> None:
    for answer in ask(handler, sent):
        assert b"secret" not in answer.body
        assert b"Traceback" not in answer.body
        assert b".py" not in answer.body


@given(handlers, bodies)
def test_the_headers_name_batch_and_slot(handler: Toy, sent: list[Any]) -> None:
    for i, answer in enumerate(ask(handler, sent)):
        assert answer.headers["x-batch-size"] == str(len(sent))
        assert answer.headers["x-batch-slot"] == str(i)
        assert float(answer.headers["x-decode-ms"]) >= 0
        assert float(answer.headers["x-inference-ms"]) >= 0


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(2, 64), st.data())
def test_bisection_finds_k_guilty_rows_in_about_2k_log_calls(kind: str, n: int, data: Any) -> None:
    guilty = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=max(1, n // 4)))
    handler = started(batch_size=n, padding=kind)
    answers = ask(handler, [[POISON if i in guilty else i] for i in range(n)])
    assert [i for i, answer in enumerate(answers) if shown(answer)[1] == [500]] == sorted(guilty)
    k = len(guilty)
    assert len(handler.calls) <= 2 * k * (math.log2(n / k) + 2) + 2  # one of them runs the warm-up input


@given(st.sampled_from([kind for kind in KINDS if kind != "fixed"]), st.integers(1, 64), st.integers(1, 64))
def test_out_of_memory_halves_and_remembers_what_worked(kind: str, n: int, capacity: int) -> None:
    handler = started(batch_size=n, padding=kind)
    handler.capacity = capacity
    sent = [[i] for i in range(n)]
    assert _answer(handler, sent) == _owed(sent)
    handler.calls.clear()
    assert _answer(handler, sent) == _owed(sent)
    assert all(len(call) <= capacity for call in handler.calls), "the second batch asks for no more than what worked"


@given(st.sampled_from(KINDS), st.integers(1, 16), st.integers(0, 15))
def test_one_row_that_fits_nowhere_lowers_no_ceiling(kind: str, n: int, where: int) -> None:
    handler = started(batch_size=n, padding=kind)
    ask(handler, [[HUGE if i == where % n else i] for i in range(n)])
    assert handler.isolation.ceiling.rows == n


@given(handlers, bodies, st.integers(-3, 3).filter(bool))
def test_a_wrong_number_of_outputs_is_an_error_never_a_shift(handler: Toy, sent: list[Any], shift: int) -> None:
    def short_or_long(inputs: Any) -> Any:
        return [[float(x[0])] for x in inputs][: max(0, len(inputs) + shift)] + [[0.0]] * max(0, shift)

    handler.engine = short_or_long
    for request, answer in zip(sent, _answer(handler, sent), strict=True):
        if isinstance(request, list) and answer[1]:
            assert set(answer[1]) <= {400, 500}


@given(bodies)
def test_groups_that_lose_or_repeat_rows_give_errors_not_wrong_answers(sent: list[Any]) -> None:
    class Lossy(Toy):
        def groups(self, items: Any) -> list[list[int]]:
            return [list(range(0, len(items), 2))]

    for got, owed in zip(_answer(started(Lossy()), sent), _owed(sent), strict=True):
        assert got[0] == owed[0]
        for record, right in zip(got[1] or [], owed[1] or [], strict=True):
            assert record in (right, 500)


@pytest.mark.parametrize("stage", ["decode", "predict", "respond"])
def test_a_fault_in_the_worker_itself_still_answers_every_slot(stage: str) -> None:
    handler = started()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug with a secret")

    setattr(handler.pipeline, stage, broken)
    answers = ask(handler, [[1], [2], b"no"])
    assert [answer.code for answer in answers] == [500, 500, 500 if stage == "decode" else 400]
    assert all(b"secret" not in answer.body for answer in answers)


def test_an_error_of_the_model_that_names_its_status_keeps_it() -> None:
    class Judge(SlotError):
        code = 422

    handler = started()

    def picky(inputs: Any) -> Any:
        if (inputs == 3).any():
            raise Judge("three is not allowed")
        return inputs

    handler.engine = picky
    values = [shown(answer)[1] for answer in ask(handler, [[1], [3], [5]])]
    assert values == [[1.0], [422], [5.0]]
    assert isinstance(Judge("x"), SlotError)
    assert ModelFault("x").code == 500


def test_a_lone_surrogate_in_an_answer_is_escaped() -> None:
    class Echo(Toy):
        def encode(self, output: Any, item: Any) -> Any:
            return "日本 \ud800"

    answer = ask(started(Echo()), [[1]])[0]
    assert answer.code == 200
    assert json.loads(answer.body) == ["日本 \ud800"]
    assert "日本".encode() in answer.body
