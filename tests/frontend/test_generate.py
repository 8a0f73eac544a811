"""Triton's generate extension: what a handler is given, what its client gets, whole and piece by piece."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from slotwise.backends.exchange import AnsweredBy, BackendAnswer, BackendRequest
from slotwise.frontend.events.piece_stream import bytes_of, text_of
from slotwise.frontend.protocols.generate import body_of
from slotwise.frontend.protocols.records import ProtocolFault

from .conftest import Front, MakeFront
from .over_http import Connect, connect
from .streaming import Streaming
from .test_event_stream import heard

__all__ = ["connect"]  # the fixture

pytestmark = pytest.mark.anyio

GENERATE, STREAM = "/v2/models/digits/generate", "/v2/models/digits/generate_stream"
NAMED = {"model_name": "digits", "model_version": "1.0"}


@pytest.fixture
async def front(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> Front:
    front = await make_front()
    monkeypatch.setattr(front.gateway.backend, "streams", True)
    return front


@pytest.fixture
def streaming(front: Front, monkeypatch: pytest.MonkeyPatch) -> Streaming:
    backend = Streaming()
    monkeypatch.setattr(front.gateway.backend, "answer", backend.answer)
    return backend


@pytest.mark.parametrize(
    ("sent", "content_type", "body"),
    [
        ({"text_input": "a cat ö"}, "text/plain; charset=utf-8", "a cat ö".encode()),
        ({"text_input": "", "parameters": {}}, "text/plain; charset=utf-8", b""),
        ({"text_input": "a", "parameters": {"top": 1}}, "application/json", None),
        ({"text_input": "a", "id": "7"}, "application/json", None),
        ({"text_input": ["a"]}, "application/json", None),
        ({"prompt": "a"}, "application/json", None),
    ],
)
def test_what_a_handler_gets(sent: dict[str, Any], content_type: str, body: bytes | None, anyio_backend: str) -> None:
    raw = json.dumps(sent).encode()
    assert body_of(raw) == (content_type, raw if body is None else body)


@pytest.mark.parametrize("raw", [b"", b"[]", b'"a"', b"{", b'{"text_input": "\\ud800"}', b"[" * 100_000])
def test_what_is_no_request(raw: bytes, anyio_backend: str) -> None:
    with pytest.raises(ProtocolFault):
        body_of(raw)


async def test_a_text_for_a_text(front: Front, streaming: Streaming) -> None:
    body = gzip.compress(json.dumps({"text_input": "a cat"}).encode())
    answer = await front.client.post(
        f"{GENERATE}?x=1", content=body, headers={"content-encoding": "gzip", "x-request-id": "r7"}
    )
    assert (answer.status_code, answer.headers["content-type"], answer.headers["x-request-id"]) == (
        200,
        "application/json",
        "r7",
    )
    assert answer.json() == {**NAMED, "text_output": "a cat"}
    (request,) = streaming.asked
    assert (request.body, request.target, request.headers["content-type"]) == (
        b"",
        "/predictions/digits?x=1",
        "text/plain; charset=utf-8",
    )
    assert "content-encoding" not in request.headers
    events = {"accept": "text/event-stream"}
    versioned = "/v2/models/digits/versions/2.0/generate"
    assert (await front.client.post(versioned, json={"text_input": "b"}, headers=events)).json()["model_version"] == "2.0"


@pytest.mark.parametrize(
    ("content_type", "answer", "status", "said"),
    [
        ("application/json", b'"a\\u00f6"', 200, "aö"),
        ("application/json", b'{"label":  "7"}', 200, '{"label":  "7"}'),
        ("text/plain", b'"a"', 200, '"a"'),
        ("image/png", b"\xff\xfe", 500, "the model's answer is no text"),
    ],
)
async def test_any_answer_is_a_text_or_an_error(
    front: Front, monkeypatch: pytest.MonkeyPatch, content_type: str, answer: bytes, status: int, said: str
) -> None:
    async def answered(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"content-type", content_type.encode())], answer)

    monkeypatch.setattr(front.gateway.backend, "answer", answered)
    got = await front.client.post(GENERATE, json={"text_input": "a"})
    assert (got.status_code, got.json()) == (status, {**NAMED, "text_output": said} if status == 200 else {"error": said})


async def test_errors_have_their_status_and_a_text(front: Front, streaming: Streaming) -> None:
    async def refused(path: str, body: Any = None, **given: Any) -> tuple[int, str]:
        answer: httpx.Response = await front.client.post(path, json=body or {"text_input": "a"}, **given)
        assert list(answer.json()) == ["error"]
        return answer.status_code, answer.json()["error"]

    assert await refused(GENERATE, [1]) == (400, "the body is no JSON object")
    assert (await refused(GENERATE, headers={"content-encoding": "br"}))[0] == 415
    assert (await refused("/v2/models/-/generate"))[0] == 404
    assert not streaming.asked
    front.gateway.backend.streams = False
    assert await refused(STREAM) == (406, "this model gives no stream here: ask for its whole answer, at /generate")


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (b'{"text": "\\u00f6"}', "ö"),
        (b'{"text": 7}', '{"text": 7}'),
        (b'{"text": "a", "n": 1}', '{"text": "a", "n": 1}'),
        (b"7", "7"),
        (b"{", "{"),
    ],
)
def test_what_a_piece_says(piece: bytes, text: str, anyio_backend: str) -> None:
    assert text_of(piece) == text
    assert bytes_of(b"\xff") == b"\xff"  # as it was


def posted(text: str, more: str = "") -> bytes:
    body = json.dumps({"text_input": text})
    return f"POST {STREAM} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def data(body: bytes) -> list[Any]:
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def test_pieces_are_events_of_one_kind(connect: Connect, streaming: Streaming) -> None:
    reader, writer = await connect()
    writer.write(posted('a b {"n":7}'))
    status, headers, body = await heard(reader)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert data(body) == [{**NAMED, "text_output": "a"}, {**NAMED, "text_output": "b"}, {**NAMED, "text_output": '{"n":7}'}]
    writer.write(posted(""))
    assert await heard(reader) == (200, {**headers, "x-request-id": streaming.asked[-1].identity}, b"")


async def test_every_piece_names_the_version_that_has_the_request(
    connect: Connect, front: Front, streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one becomes the default in the middle."""

    async def answer(request: BackendRequest) -> BackendAnswer:
        request.answered_by = AnsweredBy("digits", "1.0")
        return await streaming.answer(request)

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    reader, writer = await connect()
    writer.write(posted("a gate b"))
    assert b"200" in await reader.readuntil(b"\r\n\r\n")
    first = (await reader.readuntil(b"\n\n")).partition(b"data: ")[2]
    front.gateway.models["digits"] = replace(front.gateway.models["digits"], version="2.0")
    streaming.gate.set()
    second = (await reader.readuntil(b"}\n\n")).partition(b"data: ")[2]
    assert [json.loads(one)["model_version"] for one in (first, second)] == ["1.0", "1.0"]
    whole = await front.client.post(GENERATE, json={"text_input": "a"})
    assert whole.json()["model_version"] == "1.0"


async def test_an_error_is_an_answer_first_and_an_event_later(connect: Connect, streaming: Streaming) -> None:
    reader, writer = await connect()
    for word, status, message in (("!503", 503, "on purpose"), ("?422", 422, "its own")):
        writer.write(posted(word))
        early, headers, body = await heard(reader)
        assert (early, headers["content-type"], json.loads(body)) == (status, "application/json", {"error": message})
        writer.write(posted(f"a {word}"))
        late, _, body = await heard(reader)
        assert (late, data(body)) == (200, [{**NAMED, "text_output": "a"}, {"error": message}])
    writer.write(posted("a", "Last-Event-ID: 1\r\n"))
    assert (await heard(reader))[0] == 400
