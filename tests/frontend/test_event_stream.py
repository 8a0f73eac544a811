"""Answers as server-sent events, past ASGI and through it, their pieces from a stand-in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from slotwise.frontend.events import event_stream
from slotwise.frontend.events.event_stream import asked_for

from .conftest import Front, MakeFront
from .over_http import Connect, connect
from .streaming import Streaming

__all__ = ["connect"]  # the fixture

pytestmark = pytest.mark.anyio

DIRECT, THROUGH_ASGI = "/predictions/digits", "/models/digits/invoke"


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front()


def stream(body: str, path: str = DIRECT, version: str = "1.1", accept: str = "text/event-stream", more: str = "") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nAccept: {accept}\r\nX-Request-Id: r1\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def heard(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer, however its end is told."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
    else:
        body = await reader.read()
    return int(lines[0].split()[1]), headers, body


@pytest.mark.parametrize("path", [DIRECT, THROUGH_ASGI])
async def test_pieces_are_events_and_the_connection_goes_on(connect: Connect, streaming: Streaming, path: str) -> None:
    reader, writer = await connect()
    for body, count in (("a b c", 3), ("d", 1), ("", 0)):
        writer.write(stream(body, path))
        status, headers, got = await heard(reader)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers["x-request-id"], headers["cache-control"], headers["x-batch-slot"]) == ("r1", "no-store", "0")
        assert (headers["x-accel-buffering"], headers["x-content-type-options"]) == ("no", "nosniff")
        events = "".join(f'data: {{"text": "{word}"}}\n\n' for word in body.split())
        assert got.decode() == events + f'event: end\ndata: {{"pieces": {count}}}\n\n'
    writer.write(stream("plain", path, accept="*/*"))
    assert (await heard(reader))[2] == b"plain"


@pytest.mark.parametrize("path", [DIRECT, THROUGH_ASGI])
async def test_an_error_has_its_status_until_the_first_piece_and_is_an_event_after_it(
    connect: Connect, streaming: Streaming, front: Front, path: str
) -> None:
    reader, writer = await connect()
    for word, code in (("!503", 503), ("?422", 422)):
        writer.write(stream(word, path))
        early, headers, body = await heard(reader)
        assert (early, headers["content-type"], json.loads(body)["error"]["code"]) == (code, "application/json", code)
        writer.write(stream(f"a {word} b", path))
        status, _, got = await heard(reader)
        first, event, rest = got.decode().split("\n\n")
        assert (status, first, rest) == (200, 'data: {"text": "a"}', "")
        assert event.startswith("event: error\ndata: ")
        assert json.loads(event.partition("data: ")[2]) == json.loads(body)
    assert front.gateway.metrics.registry.get_sample_value(
        "slotwise_requests_total", {"model": "digits", "status": "503"}
    ) == 2.0  # fmt: skip


@pytest.mark.parametrize("path", [DIRECT, THROUGH_ASGI])
async def test_who_leaves_or_does_not_read_frees_its_place(
    connect: Connect, streaming: Streaming, front: Front, path: str
) -> None:
    _, writer = await connect()
    writer.write(stream("a forever", path))
    while not streaming.asked:
        await asyncio.sleep(0.01)
    limit = front.gateway.traffic("digits").limit
    while limit.running:  # it never reads
        await asyncio.sleep(0.01)
    reader, writer = await connect()
    writer.write(stream("a wait b", path))
    await reader.readuntil(b"a")
    writer.transport.abort()
    while limit.running:
        await asyncio.sleep(0.01)
    assert len(streaming.gone) >= 1
    while front.gateway.body_memory.now_bytes:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", [DIRECT, THROUGH_ASGI])
async def test_an_idle_stream_is_kept_alive_by_comments(
    connect: Connect, streaming: Streaming, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(event_stream, "ALIVE_S", 0.05)
    reader, writer = await connect()
    writer.write(stream("a wait", path))
    for _ in range(3):
        await reader.readuntil(b": alive\n\n")
    writer.transport.abort()


async def test_http_1_0_gets_events_until_the_connection_closes(connect: Connect, streaming: Streaming) -> None:
    reader, writer = await connect()
    writer.write(stream("a b", version="1.0"))
    _, headers, got = await heard(reader)
    assert (headers["connection"], "transfer-encoding" in headers) == ("close", False)
    assert got.endswith(b'event: end\ndata: {"pieces": 2}\n\n')
    _, writer = reader, writer = await connect()
    writer.write(stream("a b", THROUGH_ASGI, version="1.0"))
    assert (await heard(reader))[0] == 406


async def test_what_is_refused_before_anything_is_asked(connect: Connect, streaming: Streaming, front: Front) -> None:
    reader, writer = await connect()
    writer.write(stream("a", more="Last-Event-ID: 3\r\n"))
    status, _, body = await heard(reader)
    assert (status, "Last-Event-ID" in json.loads(body)["error"]["message"]) == (400, True)
    front.gateway.backend.streams = False
    writer.write(stream("a"))
    status, _, body = await heard(reader)
    assert (status, "application/json" in json.loads(body)["error"]["message"]) == (406, True)
    assert not streaming.asked
    writer.write(stream("whole", accept="text/event-stream, */*"))
    assert (await heard(reader))[2] == b"whole"


async def test_memory_for_what_was_sent_is_taken_and_given_back(connect: Connect, streaming: Streaming, front: Front) -> None:
    memory = front.gateway.body_memory
    reader, writer = await connect()
    writer.write(stream("abc wait"))
    await reader.readuntil(b"abc")
    assert memory.now_bytes >= len("abc wait") + len('{"text": "abc"}')
    writer.transport.abort()
    while memory.now_bytes:
        await asyncio.sleep(0.01)


async def test_streams_are_counted(connect: Connect, streaming: Streaming, front: Front) -> None:
    def number(name: str) -> float | None:
        return front.gateway.metrics.registry.get_sample_value(f"slotwise_{name}", {"model": "digits"})

    reader, writer = await connect()
    writer.write(stream("whole", accept="*/*"))
    await heard(reader)
    assert number("open_streams") is None
    writer.write(stream("a b c"))
    await heard(reader)
    writer.write(stream("a ?422"))
    await heard(reader)
    writer.write(stream("?422"))
    await heard(reader)
    writer.write(stream("a wait"))
    await reader.readuntil(b"a")
    assert number("open_streams") == 1
    writer.transport.abort()
    _, writer = await connect()
    writer.write(stream("forever"))  # it never reads
    while number("cut_off_readers_total") != 1 or number("open_streams"):
        await asyncio.sleep(0.01)
    pieces = number("pieces_total") or 0
    assert (number("first_piece_seconds_count"), number("between_pieces_seconds_count")) == (4, pieces - 4)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; q=0.9", True),
        ("text/event-stream, application/json", False),
        ("text/event-stream;q=0.5, */*;q=0.1", False),
        ("text/event-stream;q=0.5, application/json", None),
        ("text/event-stream;q=0, application/json", None),
        ("text/event-stream;q=0", None),
        ("application/json", None),
        ("", None),
        ("text/event-stream2", None),
    ],
)
def test_what_is_asked_for(accept: str, wanted: bool | None, anyio_backend: Callable[..., object]) -> None:
    assert asked_for(accept) is wanted
