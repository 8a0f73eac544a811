"""HTTP/1.1 over one connection, one request at a time, with little Python per request: what `bench` and the gateway send with.

An answer belongs to its request or there is none. Bytes that nobody asked for, a second answer, an answer that comes before its
request is sent, is cut off, or is too long: the connection is not used again. Nor is it after a 5xx: a server that gave a
request up may answer it after all, and the next request would get that answer. httptools (llhttp) refuses what is no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from slotwise.backends.exchange import RawHeaders

RawReply = tuple[int, RawHeaders, bytes]  # the status, the headers as they came, the body

REQUEST_ID = "x-batch-request-id"  # of a request; a worker of ours, and a guard, give it back with the answer
CONNECT_S = 5.0
HEAD_MAX_BYTES = 64 * 1024
REPLY_MAX_BYTES = 2**31  # head, body and what chunks add to it


def is_anothers(reply: RawReply, number: str) -> bool:
    """Whether it says that it is the answer to another request than the one with this number."""
    return any(name.lower() == REQUEST_ID.encode() and value != number.encode() for name, value in reply[1])


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises ValueError where any part of it would begin another line."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()], "", ""]
    text, breaks = "\r\n".join(lines), len(lines) - 1
    if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text or " " in target:
        raise ValueError("a line break, a NUL or a blank in a request's head")
    return text.encode("latin-1")


class HttpExchange(asyncio.Protocol):
    """One connection, made by `connected`. The on_* methods are called by httptools."""

    def __init__(self, reply_max_bytes: int = REPLY_MAX_BYTES) -> None:
        import httptools  # noqa: PLC0415  slow to import

        self.parser: Any = httptools.HttpResponseParser(self)
        self.reply_max_bytes = reply_max_bytes
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0  # for who keeps it
        self._waiting: asyncio.Future[RawReply] | None = None
        self._keep_alive = True
        self._start_reply()

    def _start_reply(self) -> None:
        self._headers: RawHeaders = []
        self._parts: list[bytes] = []
        self._received = 0
        self._in_body = False
        self._ends_with_connection = True

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._keep_alive and self._waiting is None and self.transport is not None and not self.transport.is_closing()

    async def ask(self, head: bytes, body: bytes = b"") -> RawReply:
        """Send one request and wait for its answer. Raises OSError where the connection breaks. Cancelled, it is dropped."""
        transport = self.transport
        if transport is None or not self.usable:
            raise ConnectionError("the connection is closed")
        waiting: asyncio.Future[RawReply] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        transport.writelines((head, body))  # one packet where it fits: the server wakes up once
        try:
            return await waiting
        except BaseException:
            transport.abort()
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self._fail("an answer that nobody asked for")
            return
        self._received += len(data)
        if self._received > self.reply_max_bytes:
            self._fail(f"an answer of more than {self.reply_max_bytes} bytes")
            return
        try:
            self.parser.feed_data(data)
        except Exception as error:  # httptools', or one that is raised below
            self._fail(f"not HTTP: {getattr(error, '__context__', None) or error}")
            return
        if self._received > HEAD_MAX_BYTES and not self._in_body:
            self._fail(f"an answer whose head is more than {HEAD_MAX_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._in_body and self._ends_with_connection:
            self._keep_alive = False
            self._reply()
        self.transport = None
        self._fail("the server closed the connection")

    # httptools

    def on_message_begin(self) -> None:
        if self._waiting is None or self._waiting.done():
            raise ValueError("an answer that nobody asked for")
        received = self._received
        self._start_reply()
        self._received = received

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        low = name.lower()
        if low == b"content-length":
            self._ends_with_connection = False
        elif low == b"transfer-encoding":
            self._ends_with_connection = False
            if value.lower() != b"chunked":
                raise ValueError(f"an answer in transfer-encoding {value[:50]!r}")

    def on_headers_complete(self) -> None:
        if (status := self.parser.get_status_code()) < 100:
            raise ValueError(f"an answer with status {status}")
        self._in_body = True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status == 101:
            raise ValueError("the server changes to another protocol")
        if status < 200:  # 100 Continue: the answer is still to come
            self._in_body = False
            return
        assert self.transport is not None
        sent = not self.transport.get_write_buffer_size()
        self._keep_alive = bool(self.parser.should_keep_alive()) and sent and status < 500
        self._reply()

    def _reply(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((self.parser.get_status_code(), self._headers, b"".join(self._parts)))
        self._received, self._in_body = 0, False

    def _fail(self, reason: str) -> None:
        self._keep_alive = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(reason))
        if self.transport is not None:
            self.transport.abort()


async def connected(host: str, port: int, reply_max_bytes: int = REPLY_MAX_BYTES) -> HttpExchange:
    """A new connection. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, exchange = await loop.create_connection(lambda: HttpExchange(reply_max_bytes), host, port)
    except TimeoutError:
        raise ConnectionError(f"no connection within {CONNECT_S:.0f} s") from None
    return exchange
