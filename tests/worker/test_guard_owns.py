"""What one call of theirs returned is owned before theirs is called again; what theirs is handed twice is the same twice."""

from __future__ import annotations

import enum
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.strangers import Slot, ask, guard

NAMES = ["alice", "bob", "mallory", "carol", "dave", "eve"]
BODIES = [b"bad" if name == "mallory" else name.encode() for name in NAMES]
GOOD = [name for name in NAMES if name != "mallory"]


def fails(data: Any) -> None:
    if any(row["body"] == b"bad" for row in data):
        raise ValueError


def good(slots: list[Slot]) -> list[Slot]:
    assert [slot.status for slot in slots] == [500 if name == "mallory" else 200 for name in NAMES]
    return [slot for slot, name in zip(slots, NAMES, strict=True) if name != "mallory"]


class Refills:
    """A handler whose answers are the same objects in every call, filled anew."""

    def __init__(self, fill: Callable[[Any, str], Any], new: Callable[[], Any]) -> None:
        self.fill, self.answers, self.returned = fill, [new() for _ in NAMES], []

    def handle(self, data: Any, context: Any) -> list[Any]:
        for answer, row in zip(self.answers, data, strict=False):
            self.fill(answer, row["body"].decode())
        fails(data)
        self.returned[:] = self.answers[: len(data)]
        return self.returned


def refilled(fill: Callable[[Any, str], Any], new: Callable[[], Any]) -> list[Slot]:
    return good(ask(guard(Refills(fill, new).handle), BODIES))


def test_answers_that_are_refilled_by_a_later_call_stay_their_clients() -> None:
    def fill_list(answer: list[Any], name: str) -> None:
        answer[:] = [name]

    def fill_bytes(answer: bytearray, name: str) -> None:
        answer[:] = name.encode()

    assert [slot.value["for"] for slot in refilled(lambda answer, name: answer.update({"for": name}), dict)] == GOOD
    assert [slot.value for slot in refilled(fill_list, list)] == [[name] for name in GOOD]
    assert [slot.body.decode() for slot in refilled(fill_bytes, bytearray)] == GOOD


def test_a_tensor_that_is_refilled_stays_its_clients() -> None:
    slots = refilled(lambda answer, name: answer.fill_(len(name)), lambda: torch.zeros(2))
    assert [torch.load(io.BytesIO(slot.body)).tolist() for slot in slots] == [[len(name)] * 2 for name in GOOD]


def test_a_row_of_a_batchs_tensor_is_sent_without_the_others_rows() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        return list(torch.tensor([[float(row["body"])] for row in data]))

    bodies = [b"1", b"2", b"123456"]
    together = [slot.body for slot in ask(guard(theirs), bodies)]
    assert together == [ask(guard(theirs), [body])[0].body for body in bodies]
    assert [torch.load(io.BytesIO(body)).untyped_storage().nbytes() for body in together] == [4, 4, 4]


def test_what_is_set_on_a_slot_that_theirs_kept_is_not_sent() -> None:
    kept: list[Any] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        for slot in kept:
            slot.report_status(299, "Late")
            slot.add_response_property("x-for", "nobody")
            slot.get_request_properties()["x-own"]["deep"] = "changed"
        seen = [context.get_request_header(i, "x-own")["deep"] for i in range(len(data))]
        kept.extend(context.request_processor)
        for i, row in enumerate(data):
            context.set_response_header(i, "x-for", row["body"].decode())
        fails(data)
        return seen

    headers = [{"x-own": {"deep": name}} for name in NAMES]
    slots = good(ask(guard(theirs), BODIES, headers=headers))
    assert [(slot.body.decode(), slot.headers["x-for"]) for slot in slots] == [(name, name) for name in GOOD]


def test_the_servers_ids_stay_the_servers() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        context.request_ids.clear()
        return [1] * len(data)

    assert {slot.status for slot in ask(guard(theirs), BODIES)} == {200}


@pytest.mark.parametrize("depth", [3, 300, 990, 5000])
def test_a_retry_gets_parsed_json_as_it_came_however_deep(depth: int) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        seen = []
        for row in data:
            inner = row["body"] if isinstance(row["body"], list) else [[1]]
            while isinstance(inner[0], list):
                inner = inner[0]
            seen.append(list(inner))
            inner.append("seen")
        fails(data)
        return seen

    deep: Any = 7
    for _ in range(depth):
        deep = [deep]
    slots = ask(guard(theirs), [{"body": deep}, b"bad", b"x"])
    assert [slot.status for slot in slots] == [200, 500, 200]
    assert slots[0].value == [7]


def test_one_object_for_several_requests_is_not_an_answer_for_each() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        answer: dict[str, Any] = {}
        for row in data:
            answer["for"] = row["body"].decode()
        return [answer] * len(data)

    assert [slot.value["for"] for slot in ask(guard(theirs), [name.encode() for name in NAMES])] == NAMES


BUFFER, MEMORY, STATIC = [0.0], bytearray(8), torch.zeros(1, 2)
NAMED = torch.frombuffer(MEMORY, dtype=torch.float32)


class Values(dict[str, Any]):
    """A dict of a kind of its own."""


def filled(x: float) -> None:
    BUFFER[0] = x
    STATIC.fill_(x)
    NAMED.fill_(x)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (lambda: {"found": BUFFER}, lambda x: {"found": [x]}),
        (lambda: Values(found=[({}, BUFFER)]), lambda x: {"found": [[{}, [x]]]}),
        (lambda: (BUFFER, "x"), lambda x: [[x], "x"]),
        (lambda: STATIC[0], lambda x: [x, x]),
        (lambda: STATIC.view(2)[:1], lambda x: [x]),
        (lambda: STATIC.expand(2, 2), lambda x: [[x, x]] * 2),
        (lambda: torch.frombuffer(MEMORY, dtype=torch.float32), lambda x: [x, x]),
    ],
)
def test_what_a_later_request_fills_again_deep_in_an_answer_is_nobodys_but_its_own(part: Any, value: Any) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        answers = []
        for row in data:
            filled(float(row["body"]))
            answers.append(part())
        return answers

    slots = ask(guard(theirs), [b"1", b"2", b"3"])
    sent = [json.loads(slot.body) if slot.body[:1] in b"[{" else torch.load(io.BytesIO(slot.body)).tolist() for slot in slots]
    assert sent == [value(1.0), value(2.0), value(3.0)]


class Label(enum.StrEnum):
    """A text of a kind of its own."""

    CAT = "cat"


SEQUENCE_FIRST, FIXED = torch.arange(12.0).reshape(2, 3, 2), ("a", ("b", 1))


@pytest.mark.parametrize(
    "result",
    [
        lambda i: {"label": Label.CAT, "names": FIXED, "more": [{}]},
        lambda i: [[]] * 2,  # twice in one answer
        lambda i: SEQUENCE_FIRST[:, i],  # each lies between the others' numbers
        lambda i: SEQUENCE_FIRST[0][i],
        lambda i: torch.zeros(0),
        lambda i: Label.CAT,
    ],
)
def test_what_nobody_can_change_goes_in_batches(result: Any) -> None:
    calls: list[int] = []

    def theirs(data: Any, context: Any) -> list[Any]:
        calls.append(len(data))
        return [result(i) for i in range(len(data))]

    assert {slot.status for slot in ask(guard(theirs), [b"1", b"2", b"3"])} == {200}
    assert calls == [3]


def test_answers_of_which_nobody_can_tell_whether_they_share_go_one_at_a_time() -> None:
    sparse = torch.ones(2).to_sparse()

    def theirs(data: Any, context: Any) -> list[Any]:
        sparse._values().fill_(float(data[-1]["body"]))
        return [sparse.detach() for _ in data]

    slots = ask(guard(theirs), [b"1", b"2"])
    assert [torch.load(io.BytesIO(slot.body)).to_dense().tolist() for slot in slots] == [[1.0, 1.0], [2.0, 2.0]]


def test_an_answer_that_holds_itself_costs_nobody() -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        around: list[Any] = []
        around.append((around,))
        return [around if row["body"] == b"bad" else [row["body"].decode()] for row in data]

    assert [slot.value for slot in good(ask(guard(theirs), BODIES))] == [[name] for name in GOOD]


class Lies(list[Any]):
    """A list that shows others than it holds."""

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(0)


class Longer(list[Any]):
    """A list that says it is longer than it is."""

    def __len__(self) -> int:
        return super().__len__() + 1


@pytest.mark.parametrize("kind", [Lies, Longer])
def test_a_list_that_lies_gives_nobody_anothers(kind: Any) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        answers = [row["body"].decode() for row in data]
        if kind is Longer and len(data) > 1:
            return Longer(answers[:-1])
        return kind(answers) if len(data) > 1 else answers

    assert [slot.body.decode() for slot in ask(guard(theirs), [name.encode() for name in NAMES])] == NAMES


@pytest.mark.parametrize(("status", "sent"), [(204, (204, b"")), (304, (304, b"")), (100, 500), (101, 500), (201, (201, b"1"))])
def test_a_status_that_would_change_where_the_next_answer_begins(status: int, sent: Any) -> None:
    def theirs(data: Any, context: Any) -> list[Any]:
        context.set_response_status(status, "", 1)
        for name in ("content-length", "Transfer-Encoding", "connection", "ts_stream_next"):
            context.set_response_header(0, name, "3")
        return [1] * len(data)

    slots = ask(guard(theirs), [b"a", b"b"])
    assert slots[0] == Slot(200, b"1", {})
    assert slots[1].status == (sent if isinstance(sent, int) else sent[0])
    assert isinstance(sent, int) or slots[1].body == sent[1]


def test_a_release_that_raises_costs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", gone)

    def theirs(data: Any, context: Any) -> list[Any]:
        fails(data)
        return [1] * len(data)

    guarded = guard(theirs)
    slots = ask(guarded, BODIES)
    assert {slot.status for slot in slots} == {503}
    assert guarded.dead


def test_a_retry_gets_what_is_neither_json_nor_bytes_as_it_came() -> None:
    class Picture:
        def __init__(self) -> None:
            self.seen = 0

    def theirs(data: Any, context: Any) -> list[Any]:
        answers = [getattr(row["body"], "seen", "none") for row in data]
        for row in data:
            if isinstance(row["body"], Picture):
                row["body"].seen += 1
        fails(data)
        return answers

    slots = ask(guard(theirs), [{"body": Picture()}, b"bad", {"body": Picture()}])
    assert [slot.status for slot in slots] == [200, 500, 200]
    assert [slots[0].value, slots[2].value] == [0, 0]
