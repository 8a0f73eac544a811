"""One HTTP connection against a server that does what it should not: an answer belongs to its request, or there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from slotwise.client.http_exchange import HEAD_MAX_BYTES, HttpExchange, connected, request_head

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Batch-Slot: 1\r\n\r\nok"
HEAD = request_head("POST", "/predictions/m", {"host": "h", "content-length": "1"})
Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server(*replies: bytes, close: bool = False) -> AsyncIterator[int]:
    """A server that gives the next reply to each request, on whatever connection, then hangs; close: after each reply."""
    left, writers = list(replies), list[asyncio.StreamWriter]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while left:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            writer.write(left.pop(0))
            if close:
                writer.close()
                return

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for writer in writers:
            writer.close()


async def unusable(exchange: HttpExchange) -> None:
    async with asyncio.timeout(60):
        while exchange.usable:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/m", {"x-a": "1\r\nx-b: 2"}),
        ("/m", {"x-a": "1\n\nGET / HTTP/1.1"}),
        ("/m", {"x-a": "1\r"}),
        ("/m", {"x-a\r\nx-b": "1"}),
        ("/m", {"x-a": "\0"}),
        ("/m HTTP/1.1\r\n\r\nGET /", {}),
        ("/m HTTP/1.0", {}),
        ("/m", {"x-a": "☃"}),
    ],
)
def test_a_head_is_one_head(target: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        request_head("POST", target, headers)


async def test_a_connection_is_used_again() -> None:
    async with server(OK, OK) as port:
        exchange = await connected("127.0.0.1", port)
        for _ in range(2):
            status, headers, body = await exchange.ask(HEAD, b"x")
            assert (status, dict(headers)[b"X-Batch-Slot"], body) == (200, b"1", b"ok")
        assert exchange.usable


async def test_a_chunked_answer_and_one_after_100_continue() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3;a=b\r\ncde\r\n0\r\n\r\n"
    async with server(chunked, b"HTTP/1.1 100 Continue\r\n\r\n" + OK) as port:
        exchange = await connected("127.0.0.1", port)
        assert (await exchange.ask(HEAD, b"x"))[2] == b"abcde"
        assert (await exchange.ask(HEAD, b"x"))[0] == 200
        assert exchange.usable


@pytest.mark.parametrize("status", [b"100 Continue", b"103 Early Hints\r\nlink: </a>", b"099 X", b"000 X\r\ncontent-length: 0"])
async def test_a_status_below_200_is_no_answer(status: bytes) -> None:
    async with server(b"HTTP/1.1 " + status + b"\r\n\r\n", close=True) as port:
        exchange = await connected("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            await exchange.ask(HEAD, b"x")


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"])
async def test_an_answer_may_end_with_the_connection(head: bytes) -> None:
    async with server(head + b"until the end", close=True) as port:
        exchange = await connected("127.0.0.1", port)
        assert (await exchange.ask(HEAD, b"x"))[2] == b"until the end"
        assert not exchange.usable


async def test_http_1_0_with_a_length_is_not_used_again() -> None:
    async with server(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok") as port:
        exchange = await connected("127.0.0.1", port)
        assert (await exchange.ask(HEAD, b"x"))[2] == b"ok"
        assert not exchange.usable


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\ncut off",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"",
    ],
)
async def test_an_answer_that_is_cut_off_is_none(reply: bytes) -> None:
    async with server(reply, close=True) as port:
        exchange = await connected("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            await exchange.ask(HEAD, b"x")
        assert not exchange.usable


@pytest.mark.parametrize(
    "reply",
    [
        b"this is no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx-a: 1\rx-b: 2\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 2 * HEAD_MAX_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"x-a: a\r\n" * HEAD_MAX_BYTES,
    ],
)
async def test_what_is_no_sound_answer_is_none(reply: bytes) -> None:
    async with server(reply) as port:
        exchange = await connected("127.0.0.1", port)
        with pytest.raises(ConnectionError):
            await exchange.ask(HEAD, b"x")
        assert not exchange.usable


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"a" * 100_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"a" * 1024 + b"\r\n" + b"1\r\na\r\n" * 20_000,
    ],
)
async def test_an_answer_that_is_too_long_is_none(reply: bytes) -> None:
    async with server(reply) as port:
        exchange = await connected("127.0.0.1", port, reply_max_bytes=50_000)
        with pytest.raises(ConnectionError, match="more than"):
            await exchange.ask(HEAD, b"x")
        assert not exchange.usable


async def test_a_second_answer_is_nobodys() -> None:
    async with server(OK + OK.replace(b"ok", b"no")) as port:
        exchange = await connected("127.0.0.1", port)
        assert (await exchange.ask(HEAD, b"x"))[2] == b"ok"
        await unusable(exchange)


@pytest.mark.parametrize("status", [500, 503, 507])
async def test_after_a_5xx_the_connection_is_not_used_again(status: int) -> None:
    async with server(OK.replace(b"200 OK", b"%d Sorry" % status), OK) as port:
        exchange = await connected("127.0.0.1", port)
        assert (await exchange.ask(HEAD, b"x"))[0] == status
        assert not exchange.usable


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        exchange = await connected("127.0.0.1", listening.sockets[0].getsockname()[1])
        await unusable(exchange)
        with pytest.raises(ConnectionError):
            await exchange.ask(HEAD, b"x")


async def test_an_answer_before_the_request_is_sent_counts_but_the_connection_does_not() -> None:
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.replace(b"200 OK", b"413 Too Large"))
        await over.wait()
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1024)
    async with listening:
        exchange = await connected("127.0.0.1", listening.sockets[0].getsockname()[1])
        head = request_head("POST", "/m", {"content-length": str(2**26)})
        assert (await exchange.ask(head, bytes(2**26)))[0] == 413
        assert not exchange.usable
        over.set()
        exchange.close()


async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    async with server() as port:
        exchange = await connected("127.0.0.1", port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchange.ask(HEAD, b"x")
        assert not exchange.usable
