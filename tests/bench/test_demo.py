"""The demo's judgement, on answers made by hand and from a stand-in server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwise.bench.bodies import examples
from slotwise.bench.demo import BAD_AT, bodies, judged, named_batches, play, render
from slotwise.bench.http_connection import HttpReply
from slotwise.errors import SlotwiseError
from tests.standin import Answer, standin

DIGITS = examples("digits")
LABELS = {digit.data: digit.name[0] for digit in DIGITS}


def reply(body: Any, status: int = 200, slot: int = 0, size: int = 8, took: str = "1.0") -> HttpReply:
    headers = {"x-batch-size": str(size), "x-batch-slot": str(slot), "x-decode-ms": took, "x-inference-ms": "2.0"}
    return HttpReply(status, headers, json.dumps(body).encode())


def answer(body: bytes, headers: Mapping[str, str]) -> Answer:
    """What a server of ours says."""
    sent = {"x-batch-size": "1", "x-batch-slot": "0", "x-decode-ms": "1", "x-inference-ms": "1"}
    if body in LABELS:
        return 200, sent, json.dumps({"label": LABELS[body], "probabilities": {}}).encode()
    return 400, sent, b'{"error": {"code": 400, "message": "not a picture"}}'


def record(url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("slotwise.bench.http_connection.auth_headers", lambda record, for_s: {})
    base = url.removesuffix("/predictions/m")
    return cast(Any, SimpleNamespace(kind="torchserve", prediction_url=lambda model: f"{base}/predictions/{model}"))


def test_every_request_keeps_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    with standin(answer) as url:
        result = play(record(url, monkeypatch))
    assert result.kept
    assert [request.number for request in result.requests if request.bad] == list(BAD_AT)
    assert [request.sent for request in result.requests if request.bad] == ["truncated body", "plain text", "empty body"]
    assert result.verdict.startswith("29 of 29 digits answered right, 3 of 3 bad requests refused")
    assert len(result.as_json()["requests"]) == 32
    render(result)


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (0, reply({"label": "1"})),  # another one's answer
        (0, reply({"error": {"code": 400, "message": "batch failed"}}, 400)),  # an innocent lost
        (BAD_AT[0], reply({"label": "3"})),  # a bad one answered
        (BAD_AT[0], HttpReply(507, {}, b'{"code": 507}')),  # the worker died
    ],
)
def test_what_went_wrong_is_seen(at: int, wrong: HttpReply) -> None:
    sent = bodies(DIGITS)
    replies = [reply({"error": {"message": "no"}}, 400) if b.bad else reply({"label": LABELS[b.data]}) for b in sent]
    assert judged(sent, replies).kept
    replies[at] = wrong
    result = judged(sent, replies)
    assert not result.kept
    assert [request.number for request in result.requests if not request.right] == [at]


def test_a_slot_that_is_no_number_is_none() -> None:
    sent = bodies(DIGITS)
    replies = [HttpReply(200, {"x-batch-slot": "first"}, b"{}") for _ in sent]
    assert {request.slot for request in judged(sent, replies).requests} == {None}


def test_batches_are_told_apart() -> None:
    one = [reply({}, slot=slot, size=2) for slot in (1, 0)]
    same_times = [reply({}, slot=slot, size=2) for slot in (0, 1)]
    other = [reply({}, slot=0, size=1, took="9.0"), HttpReply(503, {}, b"")]
    assert named_batches([*one, *same_times, *other]) == ["A of 2", "A of 2", "B of 2", "B of 2", "C of 1", ""]


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlotwiseError, match="does not answer"):
        play(record("http://127.0.0.1:9", monkeypatch))


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, {"error": {"code": 404, "message": "Model not found"}}, "no model m is served there"),
        (200, {"label": "tabby", "probabilities": {}}, "m does not read digits: it answered one with 200, 'tabby'"),
        (400, {"error": {"code": 400, "message": "no text"}}, "m does not read digits: it answered one with 400, 'no text'"),
    ],
)
def test_a_server_without_digits_is_told_in_one_line(
    status: int, body: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        standin(lambda sent, headers: (status, {}, json.dumps(body).encode())) as url,
        pytest.raises(SlotwiseError, match=why),
    ):
        play(record(url, monkeypatch), "m")
