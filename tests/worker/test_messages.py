"""What crosses between a host and its worker: whatever is no whole message is refused, and never read as somebody's answer."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from slotwise.worker.hosts.messages import BrokenMessage, Message, read_message, reply_of
from slotwise.worker.hosts.pipes import AnswerPipe

ANSWER = {"status": 200, "content_type": "text/plain", "headers": {"a": 1}, "bytes": 2}
METRIC = ["BatchFill", 1.0, "%", None]


def read(head: Any, rest: bytes = b"") -> Message | None:
    return read_message(io.BytesIO(json.dumps(head).encode() + b"\n" + rest), "answers")


def test_a_whole_message_is_read_as_it_was_sent() -> None:
    message = read({"id": 7, "answers": [ANSWER], "metrics": [METRIC]}, b"okmore")
    assert message is not None
    assert (message.id, message.bodies) == (7, [b"ok"])
    reply = reply_of(message, 1)
    assert (reply.answers[0].headers, reply.answers[0].body, reply.metrics) == ({"a": "1"}, b"ok", [tuple(METRIC)])
    assert read_message(io.BytesIO(b""), "answers") is None


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ([], "no message"),
        ({"answers": {}}, "no list"),
        ({"answers": [3]}, "no known size"),
        ({"answers": [{"bytes": -1}]}, "no known size"),
        ({"answers": [{"bytes": True}]}, "no known size"),
        ({"answers": [{"bytes": 3}]}, "half a message"),
    ],
)
def test_what_is_no_message(head: Any, why: str) -> None:
    with pytest.raises(BrokenMessage, match=why):
        read(head, b"ok")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"answers": []}, "0 answers to 1 requests"),
        ({"answers": [{**ANSWER, "status": "200"}]}, "without a status"),
        ({"answers": [{**ANSWER, "headers": None}]}, "without a status"),
        ({"metrics": ["BatchFill"]}, "a metric that is none"),
        ({"metrics": [[*METRIC, 5]]}, "a metric that is none"),
        ({"metrics": [["BatchFill", "1", "%", None]]}, "a metric that is none"),
        ({"times": 3}, "times is no list"),
    ],
)
def test_what_answers_no_batch(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BrokenMessage, match=why):
        reply_of(Message({"answers": [ANSWER], **changes}, [b"ok"]), 1)


def test_a_message_without_an_id_answers_nobody() -> None:
    with pytest.raises(BrokenMessage, match="without an id"):
        _ = Message({"id": "7"}, []).id


def test_half_a_line_is_no_line() -> None:
    theirs, ours = os.pipe()
    pipe = AnswerPipe(theirs, lambda: True)
    os.write(ours, b'{"id": 1}')
    os.close(ours)
    with pytest.raises(BrokenMessage, match="no message"):
        read_message(pipe, "answers")
    pipe.close()
    pipe.close()
    assert pipe.descriptor == -1, "another one may have its number by now"
