"""What `check` compares: all that a slot's answer is, and whose it is."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from slotwise.bench.bodies import RequestBody
from slotwise.check.conversation import Conversation, PromiseBroken, PromiseUntested
from slotwise.check.example_variants import variants
from slotwise.check.promises import answers, memory, order, partial, refuses
from slotwise.check.worker_protocol import SlotAnswer, WrongIds, read_answers

BODIES = [RequestBody(b"good%d" % i, "application/octet-stream", name=f"example {i}") for i in range(1, 5)]


class Worker:
    """Answers each body right alone; in a batch `mix` may change what the slots get."""

    def __init__(self, mix: Any) -> None:
        self.mix, self.asked = mix, 0

    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        self.asked += 1
        own = [
            SlotAnswer(
                200,
                b"\xff" + body.data[-1:] * 3 + b"\x90",
                f"kind/{body.name[-1]}",
                {"Owner": body.name, "x-total-ms": "1", "Date": str(self.asked)},
            )
            for body in bodies
        ]
        return self.mix(own) if len(own) > 1 else own

    def logged_exception(self) -> str:
        return ""

    def close(self) -> None:
        pass


def rotated(own: list[SlotAnswer], *fields: str) -> list[SlotAnswer]:
    mates = own[1:] + own[:1]
    return [
        SlotAnswer(**{**vars(one), **{name: vars(mate)[name] for name in fields}}) for one, mate in zip(own, mates, strict=True)
    ]


@pytest.mark.parametrize("field", ["body", "content_type", "headers"])
def test_whatever_a_slot_gets_of_its_mate_is_seen(field: str) -> None:
    talk = Conversation(lambda: Worker(lambda own: rotated(own, field)), BODIES, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    with pytest.raises(PromiseBroken, match="slot 0"):
        partial(talk)


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_small_numbers_that_are_near_each_other_are_seen_in_the_wrong_slots(noise: float) -> None:
    """All lie within the tolerance. Kernels that add in another order in a batch swap nobody."""

    class Small(Worker):
        def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
            apart = noise if len(bodies) > 1 else 0.0
            own = [SlotAnswer(200, str(int(body.data[-1:]) / 1000 + apart).encode(), "application/json", {}) for body in bodies]
            return self.mix(own) if len(own) > 1 else own

    talk = Conversation(lambda: Small(lambda own: own if noise else rotated(own, "body")), BODIES, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    if noise:
        partial(talk)
    else:
        with pytest.raises(PromiseBroken, match=r"got 0\.004, the answer of slot 1; alone it gets 0\.003"):
            partial(talk)


def test_times_and_headers_that_differ_each_time_are_nobodys() -> None:
    talk = Conversation(lambda: Worker(lambda own: own), BODIES, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    partial(talk)
    assert talk.varying == {"date"}


def test_a_mates_header_that_one_alone_never_gets_is_seen() -> None:
    class Leaks(Worker):
        """The first example's header goes to everybody in its batch."""

        def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
            headers = {"Set-Cookie": "theirs"} if BODIES[0] in bodies else {}
            return [replace(one, headers=headers) for one in super().predict(bodies)]

    talk = Conversation(lambda: Leaks(lambda own: own), BODIES, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    with pytest.raises(PromiseBroken, match="set-cookie 'theirs'; alone it gets set-cookie ''"):
        partial(talk)


def test_what_a_worker_keeps_of_a_content_type_is_seen() -> None:
    class Keeps(Worker):
        kept = ""

        def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
            self.kept = self.kept or bodies[0].name
            return [replace(one, content_type=self.kept) for one in super().predict(bodies)]

    talk = Conversation(lambda: Keeps(lambda own: own), BODIES, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    with pytest.raises(PromiseBroken, match="content-type 'example 4'; asked in another order it got content-type 'example 1'"):
        memory(talk)


def test_an_answer_is_its_whose_id_is_in_front_of_it() -> None:
    def slot(name: bytes, body: bytes) -> bytes:
        head = struct.pack("!i", len(name)) + name + struct.pack("!i", 10) + b"text/plain" + struct.pack("!i", 200)
        return head + struct.pack("!i", 2) + b"OK" + struct.pack("!ii", 0, len(body)) + body

    def read(*slots: bytes) -> list[bytes]:
        front, worker = socket.socketpair()
        with front, worker:
            worker.sendall(b"".join(slots) + struct.pack("!i", -1))
            return [one.body for one in read_answers(front, 4)]

    assert read(slot(b"check-5", b"of 5"), slot(b"check-4", b"of 4")) == [b"of 4", b"of 5"]
    for wrong in ([b"check-4", b"check-4"], [b"check-4", b"check-7"], [b"check-4", b"\xff"], [b"check-0", b"check-1"]):
        with pytest.raises(WrongIds):
            read(*(slot(name, b"x") for name in wrong))


def test_examples_are_varied_by_what_they_are() -> None:
    """Texts, too: a handler that keeps the last request's words is noticed with one example only."""

    def varied(data: str, content_type: str) -> dict[str, str]:
        body = RequestBody(data.encode(), content_type, name="e")
        return {one.name.removeprefix("e with its "): one.data.decode() for one in variants(body)}

    assert varied("a good film", "text/plain; charset=utf-8") == {"words reversed": "film good a"}
    assert varied("one", "text/plain") == {}
    assert varied('{"text": "a good film", "lang": "fr"}', "application/json") == {
        "words reversed": '{"text": "film good a", "lang": "fr"}'
    }
    assert varied("[1, 2]", "application/json") == {"numbers reversed": "[2, 1]"}


class Answering:
    """Answers numbers from 1 on, each with ten times itself; to what is none `odd` says what is answered with 200."""

    def __init__(self, odd: Callable[[Answering], Any], **also: Any) -> None:
        self.odd, self.also, self.last = odd, also, 0

    def predict(self, bodies: Sequence[RequestBody]) -> list[SlotAnswer]:
        return [SlotAnswer(200, json.dumps(self.answer(body)).encode()) for body in bodies]

    def answer(self, body: RequestBody) -> Any:
        if not body.data.isdigit():
            return self.odd(self)
        self.last = 10 * int(body.data)
        return {"ten": self.last, **self.also}

    def logged_exception(self) -> str:
        return ""

    def close(self) -> None:
        pass


def asked_of(odd: Callable[[Answering], Any], **also: Any) -> Conversation:
    """A conversation that has learned the examples of such a worker."""
    examples = [RequestBody(b"%d" % number, name=f"{number}") for number in (1, 2, 3)]
    talk = Conversation(lambda: Answering(odd, **also), examples, 4)  # type: ignore[arg-type,return-value]
    answers(talk)
    return talk


@pytest.mark.parametrize(
    "said",
    [
        {"error": "no number"},
        [{"Errors": ["no number"]}],
        {"code": 400, "message": "no number"},
        'Traceback (most recent call last):\n  File "x.py", line 1',
    ],
)
def test_an_error_with_status_200_is_no_refusal(said: Any) -> None:
    with pytest.raises(PromiseBroken, match="truncated body alone gets 200, and an error in its body: "):
        refuses(asked_of(lambda worker: said))


def test_what_the_examples_are_told_as_well_is_no_error() -> None:
    with pytest.raises(PromiseUntested, match=r"takes every body, bad ones included: .* gets 200 .*0\.9"):
        refuses(asked_of(lambda worker: {"ten": 0, "error": 0.9}, error=0.1))
    with pytest.raises(PromiseUntested, match="takes every body"):
        refuses(asked_of(lambda worker: {"ten": 0, "error": None, "code": 200}))


def test_what_is_answered_with_200_is_a_body_like_any_other() -> None:
    talk = asked_of(lambda worker: {"ten": worker.last})  # what was answered last
    with pytest.raises(PromiseUntested, match="takes every body"):
        refuses(talk)
    with pytest.raises(PromiseBroken, match="asked in another order it got"):
        memory(talk)
    with pytest.raises(PromiseBroken, match="alone it gets"):
        order(talk)


def test_a_bad_body_that_gets_another_answer_each_time_is_not_compared() -> None:
    talk = asked_of(lambda worker: {"ten": random.random()})
    with pytest.raises(PromiseUntested, match="takes every body"):
        refuses(talk)
    assert [body.name for body in talk.good] == ["1", "2", "3", "form without a body"]
    partial(talk)
