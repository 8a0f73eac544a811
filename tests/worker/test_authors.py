"""The promises hold when the handler's author errs: whatever a hook does costs only the requests that it was called for.

A hook misbehaves for marked requests only (their first number is WRONG), as a bug does that some input sets off; `groups` and
`collate` see several requests at once and misbehave where a marked one is among them. Everybody else gets what they get alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import BadRequest, Headers, Settings, SlotError
from slotwise.worker.answer import CheckedHeaders, refusal
from slotwise.worker.budget import Cost
from tests.worker.toy import Clock, Toy, ask, request, shown, started

WRONG = 13.0


class Stranger(BaseException):
    """What no `except Exception` catches."""


class Overload(SlotError):
    """An author's own error, with a status that HTTP does not know."""

    code = 529


class Broken(SlotError):
    """An author's own error with everything wrong."""

    def __init__(self) -> None:  # without its parent's
        self.code = "five hundred"  # type: ignore[assignment]

    def body(self) -> Any:
        raise ZeroDivisionError

    @property
    def message(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError


class Unsayable:
    def __str__(self) -> str:
        raise ZeroDivisionError


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def raises(error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def act(right: Any) -> Any:
        raise error()

    return act


def slow(right: Any) -> Any:
    time.sleep(0.002)
    return right


def shorter(right: Any) -> Any:
    return right[:-1] if hasattr(right, "__getitem__") else right


def doubled(right: Any) -> Any:
    return [*right, *right] if isinstance(right, list | tuple) else right


ACTS: dict[str, Callable[[Any], Any]] = {
    "raises": raises(lambda: RuntimeError("a secret")),
    "raises a SlotError": raises(lambda: BadRequest(KeyError("why"))),
    "raises an unknown status": raises(lambda: Overload("too much")),
    "raises an error that is wrong itself": raises(Broken),
    "raises an unsayable message": raises(lambda: BadRequest(Unsayable())),
    "exits": raises(lambda: SystemExit(3)),
    "raises what nobody catches": raises(Stranger),
    "runs out of memory": raises(MemoryError),
    "None": lambda right: None,
    "wrong type": lambda right: object(),
    "a number": lambda right: 7,
    "wrong length": shorter,
    "too long": doubled,
    "NaN": lambda right: float("nan"),
    "refers to itself": lambda right: itself(),
    "line break": lambda right: "a\r\nx-injected: 1",
    "slow": slow,
}
HOOKS = ["cost", "read", "decode", "groups", "collate", "predict", "encode", "respond"]


def of(value: Any) -> bool:
    """Whether anything of a marked request is in this."""
    if isinstance(value, np.ndarray):
        return bool((value == WRONG).any())
    return any(map(of, value)) if isinstance(value, list | tuple) else False


class Author(Toy):
    """A toy with one hook that misbehaves for whoever is marked."""

    hook, act = "", staticmethod(slow)

    def does(self, hook: str, marked: bool, right: Any) -> Any:
        return self.act(right) if hook == self.hook and marked else right

    def cost(self, body: bytes, headers: Headers) -> Any:
        return self.does("cost", b"13" in body, Cost(0.1, 100))

    def read(self, request: Any) -> Any:
        return self.does("read", b"13" in request.body, super().read(request))

    def decode(self, body: bytes, headers: Headers) -> Any:
        return self.does("decode", b"13" in body, super().decode(body, headers))

    def groups(self, items: Any) -> Any:
        return self.does("groups", of(items), super().groups(items))

    def collate(self, items: Any) -> Any:
        return self.does("collate", of(items), super().collate(items))

    def predict(self, inputs: Any) -> Any:
        return self.does("predict", of(inputs), super().predict(inputs))

    def encode(self, output: Any, item: Any) -> Any:
        return self.does("encode", of(item), super().encode(output, item))

    def respond(self, request: Any, results: list[Any]) -> Any:
        return self.does("respond", b"13" in request.body, super().respond(request, results))


def author(hook: str, act: str, kind: str = "none") -> Author:
    handler = Author(Settings(batch_size=8, padding=kind, decode_threads=2))
    handler.hook, handler.act = hook, ACTS[act]  # type: ignore[assignment]
    return started(handler)  # type: ignore[return-value]


bodies = st.lists(
    st.one_of(
        st.lists(st.integers(20, 99), min_size=1, max_size=3),
        st.just([13]),
        st.just([13, 21]),
        st.sampled_from([b"", b"{", "text"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(HOOKS), st.sampled_from(sorted(ACTS)), st.sampled_from(["none", "static"]), bodies)
def test_whatever_a_hook_does_everybody_else_gets_what_they_get_alone(hook: str, act: str, kind: str, sent: list[Any]) -> None:
    handler = author(hook, act, kind)
    answers = ask(handler, sent)
    for body, answer in zip(sent, answers, strict=True):
        if not (isinstance(body, list) and WRONG in body):
            assert shown(answer) == shown(ask(started(), [body])[0])
        assert 200 <= answer.code <= 599
        assert b"secret" not in answer.body


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("act", sorted(ACTS))
def test_every_hook_in_every_way(hook: str, act: str) -> None:
    handler = author(hook, act)
    answers = ask(handler, [[21], [13], b"no", [22]])
    assert answers[2].code == 400
    assert [shown(answers[i]) for i in (0, 3)] == [(200, [43.0]), (200, [45.0])]


HEADERS: list[Any] = [None, 7, {"x": 7}, {"x": None}, {7: "x"}, {"x": "a\r\nb"}, {"x\n": "a"}, {"x": Unsayable()}, {"é": "x"}]


@pytest.mark.parametrize("headers", [*HEADERS, SystemExit(), RuntimeError("a secret")], ids=lambda raw: type(raw).__name__)
def test_wrong_response_headers_leave_everybody_their_own_error(headers: Any) -> None:
    class Odd(Toy):
        def response_headers(self) -> Any:
            if isinstance(headers, BaseException):
                raise headers
            return headers

    answers = ask(started(Odd()), [[1], b"no", [2]])
    assert answers[1].code == 400
    assert {answers[0].code, answers[2].code} <= {200, 500}
    assert answers[0].code == answers[2].code
    for answer in answers:
        for name, value in answer.headers.items():
            assert (name + value).isascii()
            assert (name + value).isprintable()
    assert answers[0].code == (200 if headers is None or headers in ({"x": 7}, {"x": None}, {7: "x"}) else 500) or isinstance(
        headers, dict
    )


@pytest.mark.parametrize(
    ("content_type", "status", "sent"),
    [
        (None, 200, "application/json"),
        ("text/plain", 200, "text/plain"),
        (7, 200, "7"),
        ("text/plain\r\nx: 1", 500, "application/json"),
        ("text/plâin", 200, "text/pl?in"),
    ],
)
def test_a_content_type_is_a_line_of_ascii(content_type: Any, status: int, sent: str) -> None:
    class Odd(Toy):
        def respond(self, request: Any, results: list[Any]) -> tuple[Any, Any]:
            return "x", content_type if request.id == "id-1" else "application/json"

    answers = ask(started(Odd()), [[1], [2], [3]])
    assert [answer.code for answer in answers] == [200, status, 200]
    assert answers[1].answer.content_type == sent


@pytest.mark.parametrize(
    "error", [BadRequest(KeyError("x")), Overload("x"), Broken(), BadRequest(Unsayable()), BadRequest(None)]
)
def test_building_a_refusal_cannot_fail(error: SlotError) -> None:
    answer = refusal(error, CheckedHeaders())
    assert answer.status in (400, 500)
    assert json.loads(answer.body)["error"]["code"] == answer.status


def test_an_exception_as_a_message_costs_its_sender_only() -> None:
    """Three requests, one bad: it used to be three 500s."""

    class Careless(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            try:
                return super().decode(body, headers)
            except ValueError as error:
                raise BadRequest(error) from error

    assert [answer.code for answer in ask(started(Careless()), [[1], b"{", [2]])] == [200, 400, 200]


def test_a_record_that_refers_to_itself_fails_alone() -> None:
    class Circular(Toy):
        def encode(self, output: Any, item: Any) -> Any:
            return itself() if item[0] == 2 else super().encode(output, item)

    answers = ask(started(Circular()), [[1, 2, 3], [4]])
    assert [shown(answer) for answer in answers] == [(200, [3.0, 500, 7.0]), (200, [9.0])]


def test_one_request_of_a_thousand_records_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Slow(Toy):
        max_rows = 8

        def predict(self, inputs: Any) -> Any:
            clock.now += 1.5
            return super().predict(inputs)

    handler = started(Slow(Settings(batch_size=8, response_timeout_s=60.0)))
    answers = ask(handler, [list(range(1000)), [7]])
    assert shown(answers[1]) == (200, [15.0])
    assert shown(answers[0])[1][0] == 1.0
    assert shown(answers[0])[1][-1] == 503


def test_groups_of_an_author_are_fair_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Sorted(Toy):
        """Long rows last, as the translator has it; here the single row is the longest."""

        max_rows = 8

        def groups(self, items: Any) -> list[list[int]]:
            order = sorted(range(len(items)), key=lambda i: items[i][0])
            return [order[i : i + 8] for i in range(0, len(order), 8)]

        def predict(self, inputs: Any) -> Any:
            clock.now += 0.15
            return super().predict(inputs)

    handler = started(Sorted(Settings(batch_size=65, response_timeout_s=120.0)))
    answers = ask(handler, [*[list(range(1000))] * 64, [10**6]])
    assert shown(answers[64]) == (200, [2.0 * 10**6 + 1])


def test_slow_decoders_run_out_of_their_own_share() -> None:
    ended = threading.Event()

    class Slow(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            if body == b"[13]":
                ended.wait(120)
            return super().decode(body, headers)

    handler = started(Slow(Settings(batch_size=8, response_timeout_s=32.0, decode_threads=1)))
    answers = ask(handler, [[13], [13], [13], [13], [1], [2], b"no"])
    assert [answer.code for answer in answers] == [503, 503, 503, 503, 200, 200, 400]
    assert [answer.code for answer in ask(handler, [[3], [4]])] == [200, 200], "the next batch finds free threads"
    ended.set()


def test_what_is_over_its_share_is_refused_and_never_decoded() -> None:
    decoded: list[bytes] = []

    class Dear(Toy):
        def cost(self, body: bytes, headers: Headers) -> Cost | None:
            if body == b"[3]":
                raise ValueError("no header")
            return Cost(400 * json.loads(body)[0], 1000)

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            decoded.append(body)
            return super().decode(body, headers)

    handler = started(Dear(Settings(batch_size=8, decode_budget_ms=1000, decode_threads=1)))
    answers = ask(handler, [[2], [0], [5], [3], [1], [1]])
    assert [answer.code for answer in answers] == [413, 200, 413, 200, 200, 200]
    assert sorted(decoded) == [b"[0]", b"[1]", b"[1]", b"[3]"]
    assert [answer.code for answer in ask(handler, [[2]])] == [200], "alone it is within the budget"


def test_a_body_that_needs_too_much_memory_is_refused() -> None:
    class Large(Toy):
        def cost(self, body: bytes, headers: Headers) -> Cost | None:
            return Cost(1, 2**31 if body == b"[1]" else 2**29 + 1)

    answers = ask(started(Large(Settings(batch_size=8, decode_threads=2))), [[1], [2], [3]])
    assert [answer.code for answer in answers] == [413, 200, 200]


def test_a_bug_in_groups_overwrites_no_other_slots_error() -> None:
    class Odd(Toy):
        def groups(self, items: Any) -> list[list[int]]:
            raise RuntimeError("a bug")

    assert [answer.code for answer in ask(started(Odd()), [[1], b"no", "text"])] == [200, 400, 400]
    assert shown(ask(started(Odd()), [[1]])[0])[1] == [500]


def test_a_host_may_refuse_a_request_before_it_is_decoded() -> None:
    handler = started()
    answers = handler.pipeline.answer([request(0, [1]), request(1, [2], refused=BadRequest("no")), request(2, [3])])
    assert [answer.status for answer in answers] == [200, 400, 200]


def test_every_part_of_a_form_costs() -> None:
    class Dear(Toy):
        def cost(self, body: bytes, headers: Headers) -> Cost | None:
            return Cost(600, 1000) if body.startswith(b"[") else None

        def read(self, request: Any) -> list[Any]:
            return [np.array([1.0])]

    pipeline = started(Dear(Settings(batch_size=8, decode_budget_ms=1000, decode_threads=2))).pipeline
    note = {"note": [b"a text"], "left": [b"[1]"]}
    two = {"left": [b"[1]"], "right": [b"[2]"]}
    unclear = BadRequest("which?")
    sent = [request(0, b"", fields=note, unclear=unclear), request(1, b"", fields=two, unclear=unclear)]
    assert [answer.status for answer in pipeline.answer(sent)] == [200, 413]


@pytest.mark.parametrize("cost", [Cost(float("nan"), 1), Cost(-1, 1), Cost("1", 1), 7, (1, 2)])  # type: ignore[arg-type]
def test_an_estimate_that_makes_no_sense_is_none(cost: Any) -> None:
    class Odd(Toy):
        def cost(self, body: bytes, headers: Headers) -> Any:
            return cost

    assert [answer.code for answer in ask(started(Odd()), [[1], [2]])] == [200, 200]
