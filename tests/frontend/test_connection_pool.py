"""The gateway's connections to its server."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import pytest

from slotwise.backends.remote import connection_pool as module
from slotwise.backends.remote.connection_pool import ConnectionPool
from slotwise.frontend.forward import Forward

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio

TOKEN = {"authorization": "Bearer token"}


async def asked(pool: ConnectionPool, **given: bool) -> int:
    status, _, _ = await pool.request("POST", "/predictions/digits", TOKEN, b"x", **given)
    return status


async def test_connections_are_kept_and_a_fresh_one_is_not_taken_from_them() -> None:
    async with StandIn() as server:
        pool = ConnectionPool(f"http://127.0.0.1:{server.port}")
        assert [await asked(pool) for _ in range(3)] == [200, 200, 200]
        assert len(server._writers) == 1
        assert await asked(pool, fresh=True) == 200
        assert len(server._writers) == 2
        assert await asyncio.gather(*[asked(pool) for _ in range(5)]) == [200] * 5
        pool.close()


async def test_a_connection_that_the_server_closed_is_not_taken() -> None:
    server = StandIn()
    async with server:
        pool = ConnectionPool(f"http://127.0.0.1:{server.port}")
        assert await asked(pool) == 200
        (exchange,) = pool._idle
    async with asyncio.timeout(60):
        while exchange.usable:
            await asyncio.sleep(0.01)
    async with StandIn(port=server.port):
        assert await asked(pool) == 200


async def test_a_request_that_its_server_gave_up_and_answers_after_all_leaves_the_next_ones_answer_alone() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late = b""
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(1)
                said = b"500 Worker died" if body == b"1" else b"200 OK"
                writer.write(late + b"HTTP/1.1 %b\r\ncontent-length: 1\r\n\r\n%b" % (said, body))
                late = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1" if body == b"1" else b""
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        pool = ConnectionPool(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        answers = [await pool.request("POST", "/predictions/digits", {}, body) for body in (b"1", b"2")]
        pool.close()
    assert [(status, body) for status, _, body in answers] == [(500, b"1"), (200, b"2")]


async def test_the_answer_to_another_request_is_nobodys() -> None:
    """A server that answers a request twice, and is one answer late from then on: so TorchServe was seen."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = deque[bytes]()
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
                number = head.partition(b"x-batch-request-id: ")[2].partition(b"\r")[0]
                named = b"X-Batch-Slot: 0\r\nX-Batch-Request-Id: %b\r\n" % number
                said.append(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (named, len(body), body))
                if len(said) == 1 and body.startswith(b"twice"):
                    said.append(said[0])
                writer.write(said.popleft())
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listening:
        pool = ConnectionPool(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        given = {"x-request-id": "the same", "x-batch-request-id": "1"}  # whatever a client says of itself
        for body in (b"twice-1", b"2", b"3"):
            asked = pool.request("POST", "/predictions/digits", given, body)
            if body == b"2":
                with pytest.raises(ConnectionError, match="another request"):
                    await asked
            else:
                assert (await asked)[2] == body
        pool.close()


async def test_no_more_are_kept_than_allowed_and_none_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StandIn() as server:
        pool = ConnectionPool(f"http://127.0.0.1:{server.port}")
        monkeypatch.setattr(module, "KEPT", 3)
        await asyncio.gather(*[asked(pool) for _ in range(8)])
        assert len(pool._idle) == 3
        monkeypatch.setattr(module, "KEPT_S", 0.0)
        await asked(pool)
        assert len(pool._idle) <= 1


async def test_after_closing_nothing_is_kept() -> None:
    async with StandIn(takes_s=(0.05, 0.1)) as server:
        pool = ConnectionPool(f"http://127.0.0.1:{server.port}")
        under_way = asyncio.create_task(asked(pool))
        while not server.seen:
            await asyncio.sleep(0.01)
        pool.close()
        assert await under_way == 200
        assert not pool._idle


async def test_an_answer_over_the_limit_is_a_502(make_front: MakeFront) -> None:
    front = await make_front()
    upstream = front.backend.upstream
    assert upstream is not None
    upstream._pool._reply_max_bytes = 10
    answer = await front.predict()
    assert answer.status_code == 502
    assert len(front.server.seen) == 2  # the second try


@pytest.mark.parametrize("query", [b"a=1 HTTP/1.1\r\nx-evil: 1", b"a\nb", b"a b", b"\0"])
async def test_what_would_be_another_request_is_a_400_and_never_sent(make_front: MakeFront, query: bytes) -> None:
    front, sent = await make_front(), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predictions/digits",
        "path_params": {"model": "digits"},
        "query_string": query,
        "headers": [],
    }
    await Forward(front.gateway)(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not front.server.seen
