"""Bodies as they come over a connection: whole, in pieces, in chunks, too large, cut off; on both event loops."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import os
from contextlib import suppress
from typing import Any

import pytest

from slotwise.backends.interface import BackendAnswer
from slotwise.frontend import forward

from .conftest import Front
from .over_http import HEAD, Connect, answer, anyio_backend, chunked, connect, front, sized

__all__ = ["anyio_backend", "connect", "front"]  # the fixtures
pytestmark = pytest.mark.anyio
BODY = os.urandom(300_000)  # more than is read at once
LONG = 20_000_000  # more than the sockets between two processes hold


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("size", [1, 150_000, 300_000])
@pytest.mark.parametrize("piece", [1009, 400_000])
async def test_a_body_arrives_as_it_was_sent(connect: Connect, front: Front, size: int, piece: int) -> None:
    reader, writer = await connect()
    for body in (BODY[:size], BODY[-size:]):  # the connection is kept
        request = sized(body)
        for start in range(0, len(request), piece):
            writer.write(request[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)
        status, found = await answer(reader)
        assert (status, found["sha256"]) == (200, sha256(body))
    assert front.gateway.body_memory.now_bytes == 0


async def test_chunks_are_one_body(connect: Connect) -> None:
    reader, writer = await connect()
    for chunks in ([BODY[i : i + 1] for i in range(5000)], [BODY[:7], BODY[7:200_000]], [BODY[:100]]):
        writer.write(chunked(*chunks, b""))
        status, found = await answer(reader)
        assert (status, found["sha256"]) == (200, sha256(b"".join(chunks)))


async def test_bodies_of_two_connections_stay_apart(connect: Connect) -> None:
    connections = [await connect(), await connect()]
    bodies = BODY[:140_000], BODY[140_000:]
    requests = [sized(body) for body in bodies]
    for start in range(0, 200_000, 20_000):
        for (_, writer), request in zip(connections, requests, strict=True):
            writer.write(request[start : start + 20_000])
            await writer.drain()
            await asyncio.sleep(0.001)
    assert [(await answer(reader))[1]["sha256"] for reader, _ in connections] == [sha256(body) for body in bodies]


async def test_requests_may_come_before_the_answer_to_the_last(connect: Connect) -> None:
    reader, writer = await connect()
    bodies = [BODY[:1000], BODY[1000:150_000], BODY[:10]]
    writer.write(b"".join(map(sized, bodies)))
    assert [(await answer(reader))[1]["sha256"] for _ in bodies] == [sha256(body) for body in bodies]


@pytest.mark.parametrize("request_", [f"{HEAD}Content-Length: 500001\r\n\r\n".encode(), chunked(BODY, BODY[:200_001])[:-2]])
async def test_a_body_over_the_limit_is_refused(connect: Connect, front: Front, request_: bytes) -> None:
    reader, writer = await connect()
    writer.write(request_)
    status, found = await answer(reader)
    assert (status, found["error"]["code"]) == (413, 413)
    assert await reader.read() == b""  # closed
    assert (front.server.seen, front.gateway.body_memory.now_bytes) == ([], 0)


@pytest.mark.parametrize("path", ["/predictions/digits", "/v1/models/digits:predict"])
async def test_who_still_sends_a_body_gets_the_answer_that_ends_its_connection(connect: Connect, path: str) -> None:
    """Were the connection closed at once, what comes then would be answered with a reset, which can take the answer along."""
    reader, writer = await connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n".encode())
    for _ in range(6):
        writer.write(bytes(100_000))
        await writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        assert (await answer(reader))[0] == 413
        assert await reader.read() == b""


async def test_a_request_after_one_that_was_refused_early_is_answered(connect: Connect, front: Front) -> None:
    """The rest of the first body comes after its answer, more than may wait for a request that reads."""
    reader, writer = await connect()
    limit = front.gateway.traffic("digits").limit
    limit.resize(0, 0)
    whole = sized(BODY)
    writer.write(whole[:150_000])
    assert (await answer(reader))[0] == 429
    limit.resize(8, 4)
    writer.write(whole[150_000:] + sized(BODY[:10]))
    status, found = await asyncio.wait_for(answer(reader), 20)
    assert (status, found["sha256"]) == (200, sha256(BODY[:10]))


async def test_a_client_that_stops_midway_leaves_nothing(connect: Connect, front: Front) -> None:
    _, writer = await connect()
    writer.write(sized(BODY)[:100_000])
    while not front.gateway.body_memory.now_bytes:
        await asyncio.sleep(0.01)
    writer.close()
    while front.gateway.body_memory.now_bytes:
        await asyncio.sleep(0.01)
    assert front.server.seen == []


async def test_who_asks_first_is_told_to_go_on_or_not(connect: Connect) -> None:
    reader, writer = await connect()
    head, body = sized(BODY)[: -len(BODY)], BODY
    writer.write(head[:-2] + b"Expect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    status, found = await answer(reader)
    assert (status, found["sha256"]) == (200, sha256(body))
    writer.write(f"{HEAD}Content-Length: 500001\r\nExpect: 100-continue\r\n\r\n".encode())
    assert (await answer(reader))[0] == 413
    reader, writer = await connect()
    writer.write(head[:-2].replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue\r\n\r\n" + body)
    assert (await answer(reader))[0] == 200, "HTTP/1.0 knows no answer before the answer"


async def test_a_client_that_does_not_take_its_answer_is_cut_off(
    connect: Connect, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the answer is counted; others are answered meanwhile."""

    async def long_answer(*given: Any) -> BackendAnswer:
        return BackendAnswer(200, [(b"x-batch-slot", b"0")], bytes(LONG))

    monkeypatch.setattr(forward, "SEND_S", 3.0)
    monkeypatch.setattr(forward, "SLOWEST_BYTES_A_S", 2.0**40)
    assert front.backend.upstream
    monkeypatch.setattr(front.backend.upstream, "send", long_answer)
    patient_reader, patient = await connect()
    reader, writer = await connect()
    writer.write(sized(b"x"))
    async with asyncio.timeout(60):
        while front.gateway.body_memory.now_bytes < LONG:
            await asyncio.sleep(0.01)
        patient.write(sized(b"x"))
        head = await patient_reader.readuntil(b"\r\n\r\n")
        assert len(await patient_reader.readexactly(LONG)) == LONG
        assert b"200 OK" in head
        while front.gateway.body_memory.now_bytes:
            await asyncio.sleep(0.01)
        received = 0
        with suppress(ConnectionError):
            while piece := await reader.read(2**20):
                received += len(piece)
    assert received < LONG


@pytest.mark.parametrize(
    "target", ["/predictions/digits?a=%zz", "/predictions/digits?a=1%", "/predictions/di%zzgits", "/invocations?%4"]
)
async def test_a_percent_sign_that_means_nothing_reaches_no_server(connect: Connect, front: Front, target: str) -> None:
    """TorchServe answers some of these with 403 and 500, in Java's words, and does not read the others at all."""
    reader, writer = await connect()
    writer.write(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n7".encode())
    status, found = await answer(reader)
    assert (status, len(front.server.seen)) == (400, 0)
    assert "%" in found["error"]["message"]
    writer.write(b"POST /predictions/digits?a=%4a%25 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n7")
    assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Content-Type: text/plain\r\nContent-Type: application/json", 400),
        ("Content-Type: text/plain\r\ncontent-type: text/plain", 200),
        ("Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2", 400),
    ],
)
async def test_what_says_how_a_body_is_read_says_one_thing(connect: Connect, front: Front, lines: str, status: int) -> None:
    reader, writer = await connect()
    writer.write(f"{HEAD}{lines}\r\nContent-Length: 1\r\n\r\n7".encode())
    assert (await answer(reader))[0] == status
    assert len(front.server.seen) == (status == 200)


async def test_several_encodings_are_one_list(connect: Connect, front: Front) -> None:
    """Read by the last one alone, a body that is packed twice would be unpacked once."""
    body = gzip.compress(gzip.compress(b'{"instances": [1]}'))
    packed = f"Content-Encoding: gzip\r\nX-A: 1\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reader, writer = await connect()
    writer.write(HEAD.encode() + packed + body)
    assert (await answer(reader))[0] == 200
    assert front.server.seen[-1].headers["content-encoding"] == "gzip, gzip"
    writer.write(b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: x\r\n" + packed + body)
    assert (await answer(reader))[0] == 415


async def test_who_leaves_while_it_asks_for_the_models_is_no_failure(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await connect()
    writer.write(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await asyncio.sleep(0.1)
    reader, writer = await connect()
    writer.write(sized(b"7"))
    assert (await answer(reader))[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
