"""One connection of HTTP/1.1: uvicorn's cycle of request and answer, with our own reading of where a request ends.

A request that comes behind another is read when that one is answered: until then its bytes wait, and where many do, no more are
received. What cannot be read is answered with 400, in the shape of every other error, and nothing after it is read.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from slotwise.gateway import replies
from slotwise.gateway.http_framing import END_OF_HEAD, Body, Malformed, body_of, check_line_ends, check_lines
from slotwise.gateway.inference_request import ABORT

log = logging.getLogger("slotwise.gateway")

AHEAD_BYTES = 64 * 1024  # that may wait behind a request which is being answered
LINGER_S = 2.0  # after a refusal what still comes is read away: a connection closed at once takes the answer along

RECEIVED = bytearray(256 * 1024)  # of all connections: what was read is taken apart before the next is read
WHOLE = memoryview(RECEIVED)


class Receiver(asyncio.BufferedProtocol):
    """One connection, read into RECEIVED: no read makes an object of its own."""

    def __init__(self, **given: Any) -> None:
        self._http = GatewayProtocol(**given)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._http.connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return WHOLE

    def buffer_updated(self, nbytes: int) -> None:
        self._http.received(RECEIVED, nbytes)


class GatewayProtocol(HttpToolsProtocol):
    """The requests of one connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._ahead = bytearray()  # has come, and cannot be taken apart yet
        self._body: Body | None = None  # of the request that is being read
        self._blank_line = False  # came before the next head, which one may
        self._refused = False

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def received(self, data: bytearray, end: int) -> None:
        """Take data[:end] apart, as far as that can be done now."""
        self._unset_keepalive_if_required()
        if self._refused:
            return
        if self._ahead:
            self._ahead += memoryview(data)[:end]
            self._go_on()
        else:
            taken = self._taken(data, end)
            if taken < end:
                self._ahead += memoryview(data)[taken:end]
            self._hold_back()

    def _go_on(self) -> None:
        """Take apart what has come before."""
        data, self._ahead = self._ahead, bytearray()
        taken = self._taken(data, len(data))
        self._ahead = data[taken:] if taken else data
        self._hold_back()

    def _hold_back(self) -> None:
        """Stop reading where a request, or what comes behind it, has enough to do."""
        cycle = self.cycle
        if self._answering and (len(self._ahead) > AHEAD_BYTES or (cycle.more_body and len(cycle.body) > HIGH_WATER_LIMIT)):
            self.flow.pause_reading()

    def _taken(self, data: bytearray, end: int) -> int:
        """Take data[:end] apart until a request has to be answered, or the rest of one has to come; returns where that is."""
        at = 0
        try:
            while at < end and not self._refused:
                if self._body is not None:
                    at = self._take_body(self._body, data, at, end)
                elif self._answering:
                    break
                else:
                    start, at = at, self._take_head(data, at, end)
                    if at == start:
                        break
        except (Malformed, httptools.HttpParserError) as error:
            self._refuse(400, "this is no valid HTTP request", f"{error.__context__ or error}")
        return end if self._refused else at

    def _take_head(self, data: bytearray, at: int, end: int) -> int:
        """Read the head at `at`, or the blank line before it; where it ends is returned, `at` where more must come."""
        if data.startswith(b"\r\n", at, end):
            if self._blank_line:
                raise Malformed("there are blank lines before a request")
            self._blank_line = True
            return at + 2
        found = data.find(END_OF_HEAD, at, end)
        if found < 0:
            check_line_ends(data, at, end)
            return at
        stop = found + len(END_OF_HEAD)
        head = bytes(memoryview(data)[at:stop])
        check_lines(head)
        self.parser, self._blank_line = httptools.HttpRequestParser(self), False
        with suppress(
            httptools.HttpParserUpgrade
        ):  # is ignored, as RFC 9110 allows (7.8): the body comes as it would without it
            self.parser.feed_data(head)
        self._end_if_complete()
        return stop

    def _take_body(self, body: Body, data: bytearray, at: int, end: int) -> int:
        parts, stop = body.take(data, at, end)
        cycle = self.cycle
        if parts and not cycle.response_complete:  # else the rest is only read away
            read = parts[0] if len(parts) == 1 else b"".join(parts)
            cycle.body = cycle.body + read if cycle.body else read  # type: ignore[assignment]  # no copy of what came at once
            cycle.message_event.set()
        self._end_if_complete()
        return stop

    def _end_if_complete(self) -> None:
        """Tell the request that all of its body is there."""
        if self._body is not None and self._body.complete:
            self._body = None
            self.cycle.more_body = False
            if not self.cycle.response_complete:
                self.cycle.message_event.set()

    def on_headers_complete(self) -> None:
        """See how the body comes, then start to answer."""
        self._body = body_of(self.parser.get_http_version(), self.headers)
        super().on_headers_complete()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]  # the answer begins later

    def on_body(self, body: bytes) -> None:
        """httptools is given no body."""

    def on_message_complete(self) -> None:
        """httptools does not know where a request ends."""

    def on_response_complete(self) -> None:
        """Take apart what came behind the request that is answered now."""
        super().on_response_complete()
        if self._ahead and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what has come."""
        super().connection_lost(exc)
        self._ahead = bytearray()

    def _refuse(self, status: int, message: str, why: str) -> None:
        """Answer what cannot be read, unless it is answered already, and end the connection."""
        self._refused = True
        answered = self._body is not None and self.cycle.response_started
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answered:
            self.transport.close()
            return
        identity = replies.new_id()
        log.info("%s %d %s", identity, status, why)
        body = replies.error_body(status, message, identity)
        headers = [
            replies.JSON_TYPE,
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", identity.encode()),
            (b"connection", b"close"),
            *replies.ANSWER,
            *replies.SECURITY,
        ]
        self.transport.write(STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body)
        self._close_after_lingering()

    def _close_after_lingering(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
