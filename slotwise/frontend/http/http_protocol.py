"""One connection of HTTP/1.1: uvicorn's cycle of request and answer, with our own reading of where a request ends.

A request that comes behind another is read when that one is answered: until then its bytes wait, and where many do, no more are
received. What cannot be read is answered with 400, in the shape of every other error, and nothing after it is read. So is what
comes too slowly, or is too large or too much: 408, 431, 429.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotwise.backends.interface import Refused
from slotwise.frontend import replies
from slotwise.frontend.http.access import Entrance
from slotwise.frontend.http.asgi_cycle import AsgiCycle, as_asgi
from slotwise.frontend.http.client_connections import LINGER_S, OpenConnections, Pace, aborted, has_unread
from slotwise.frontend.http.direct import DirectCycle, ObservedCycle, head_of, what_is_read
from slotwise.frontend.http.http_framing import Body, Malformed
from slotwise.frontend.http.read_ahead import AHEAD_BYTES, ReadAhead
from slotwise.frontend.http.request_head import END_OF_HEAD, HeadTooLarge, RequestHead, check_line_ends, read_head

log = logging.getLogger("slotwise.gateway")


class GatewayProtocol(HttpToolsProtocol):
    """The requests of one connection. open: all connections; what this one is to them stands in ClientConnection."""

    def __init__(self, open_: OpenConnections, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.open, self.limits = open_, open_.limits
        self.direct = isinstance(self.app, Entrance)  # it takes what is for a model without ASGI
        self.observer = self.app.observer if self.direct else None
        self._cycle = DirectCycle if self.observer is None else ObservedCycle
        self.peer, self.asked, self._certified = "", 0, False
        self._since = self.loop.time()  # the loop's time from which on a first byte is waited for, or the rest of a head
        self._ahead = ReadAhead()
        self._goes_on = False  # with what has come, after others had their turn
        self._body: Body | None = None  # of the request that is being read
        self._body_bytes = 0  # of it that have come
        self._body_pace: Pace | None = None
        self._answer_pace: Pace | None = None  # while there is some of an answer that the client has not taken
        self._blank_line = False  # came before the next head, which one may
        self._too_many = False  # more came behind a request than may wait
        self._ended = self._leaves = False  # what still comes is read away; it ends with its next answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it where there are too many."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        tls = transport.get_extra_info("ssl_object")
        self._certified = tls is not None and bool(tls.getpeercert(binary_form=True))
        try:
            self.open.add(self)
        except Refused as refused:
            self._write_refusal(refused)
            self._close_after_lingering() if self.open.lingers(self) else transport.close()

    @property
    def idle_since(self) -> float | None:
        """Since when nothing is asked, None while a request is in hand, or an answer that its client has not taken."""
        return self._since if self._at_rest and not self.transport.get_write_buffer_size() else None

    @property
    def _at_rest(self) -> bool:
        return not self._answering and self._body is None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _head_begun(self) -> bool:
        return bool(self._ahead.data) or self._blank_line

    def received(self, data: bytearray, end: int) -> None:
        """Take data[:end] apart, as far as that can be done now."""
        if self._ended or self._too_many:
            return
        if self._at_rest and not self._head_begun:
            self._since = self.loop.time()
        if self._ahead.data:
            self._ahead.data += memoryview(data)[:end]
            if not self._goes_on:
                self._go_on()
        else:
            taken = self._taken(data, end)
            if taken < end:
                self._ahead.data += memoryview(data)[taken:end]
            self._hold_back()

    def _go_on(self) -> None:
        """Take apart what has come before."""
        data, self._ahead.data = self._ahead.data, bytearray()
        self._ahead.swap(data, self._taken(data, len(data)))
        self._hold_back()

    def _go_on_later(self) -> None:
        """Let others have their turn: what has come is more than is read at once."""
        if not self._goes_on:
            self._goes_on = True
            self.flow.pause_reading()
            self.loop.call_soon(self._after_others)

    def _after_others(self) -> None:
        self._goes_on = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._go_on()

    def _hold_back(self) -> None:
        """Stop reading where a request, or what comes behind it, has enough to do."""
        if not self._answering:
            return
        if len(self._ahead.data) > AHEAD_BYTES or (self.cycle.more_body and len(self.cycle.body) > HIGH_WATER_LIMIT):
            self.flow.pause_reading()
        if self._body is None and self._ahead.cut(self.limits.max_pipelined):
            self._too_many = True

    def _taken(self, data: bytearray, end: int) -> int:
        """Take data[:end] apart until a request has to be answered, or the rest of one has to come; returns where that is."""
        at = 0
        try:
            while at < end and not self._ended:
                if self._body is not None:
                    at = self._take_body(self._body, data, at, end)
                    if at < end and self._body is not None:
                        self._go_on_later()
                        break
                elif self._answering:
                    break
                else:
                    start, at = at, self._take_head(data, at, end)
                    if at == start:
                        break
        except HeadTooLarge as error:
            self._refuse(Refused(431, str(error), close=True))
        except Malformed as error:
            self._refuse(Refused(400, "this is no valid HTTP request", close=True), error.kind)
        return end if self._ended else at

    def _take_head(self, data: bytearray, at: int, end: int) -> int:
        """Read the head at `at`, or the blank line before it; where it ends is returned, `at` where more must come."""
        if data.startswith(b"\r\n", at, end):
            if self._blank_line:
                raise Malformed("there are blank lines before a request")
            self._blank_line = True
            return at + 2
        head_end = data.find(END_OF_HEAD, at, end)
        stop = end if head_end < 0 else head_end + len(END_OF_HEAD)
        self.limits.head.check(data, at, stop)
        if head_end < 0:
            check_line_ends(data, at, end)
            return at
        self._blank_line = False
        self._begin(read_head(bytes(memoryview(data)[at:stop])))
        self._end_if_complete()
        return stop

    def _take_body(self, body: Body, data: bytearray, at: int, end: int) -> int:
        parts, stop = body.take(data, at, end)
        self._body_bytes += stop - at
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
            self._since = self.loop.time()
            self.cycle.more_body = False
            if not self.cycle.response_complete:
                self.cycle.message_event.set()

    def _begin(self, head: RequestHead) -> None:
        """Start to answer a request; what is for a model past ASGI."""
        self._body = head.body()
        self._body_bytes, self._body_pace = 0, Pace(self.loop.time())
        self.asked += 1
        names = self.app.names(head.method, head.path) if self.direct else None
        about: dict[str, Any] = {
            "transport": self.transport,
            "flow": self.flow,
            "logger": self.logger,
            "access_logger": self.access_logger,
            "access_log": False,
            "default_headers": self.server_state.default_headers,
            "message_event": asyncio.Event(),
            "expect_100_continue": head.expects_continue,
            "keep_alive": head.keep_alive and not self._leaves,
            "on_response": self.on_response_complete,
        }
        if names is None:
            self.cycle = AsgiCycle(scope=as_asgi(self, head, self._certified), **about)  # type: ignore[arg-type]
            self._run(self.cycle.run_asgi(self.app))
        else:
            self.cycle = cycle = self._cycle(scope=what_is_read(head, self.client, self._certified, names), **about)  # type: ignore[arg-type]
            self._run(cycle.run(self.app))

    def _run(self, answering: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_response_complete(self) -> None:
        """Take apart what came behind the request that is answered now."""
        self.server_state.total_requests += 1
        self._since, self._answer_pace = self.loop.time(), None
        self.flow.resume_reading()
        if self._ended or self.transport.is_closing():
            return
        if self.cycle.closes:  # type: ignore[attr-defined]
            self._close_after_lingering()
        elif self._ahead.data:
            self._go_on()
        elif self._too_many:
            why = f"at most {self.limits.max_pipelined} requests may come before an answer"
            self._refuse(Refused(429, why, retry_after_s=1, close=True))

    def look(self, now: float) -> None:
        """End the connection where its client takes too long for what it has to do."""
        not_taken = self.transport.get_write_buffer_size()
        if not_taken:
            taken = (self.cycle.written if self.cycle else 0) - not_taken  # type: ignore[attr-defined]
            self._answer_pace = self._answer_pace or Pace(now, taken)
            if self._answer_pace.too_slow(now, taken, self.limits):
                self.transport.abort()
        elif not self._ended and not self.transport.is_closing():
            self._answer_pace = None
            self._look_at_request(now)

    def _look_at_request(self, now: float) -> None:
        if self._body is not None:
            if self.flow.read_paused or self._body_pace is None:
                self._body_pace = Pace(now, self._body_bytes)
            elif self._body_pace.too_slow(now, self._body_bytes, self.limits):
                self._refuse(Refused(408, f"a body brings at least {self.limits.min_body_rate} bytes a second", close=True))
        elif self._answering:
            return
        elif self._head_begun:
            if now - self._since > self.limits.head_timeout_s:
                self._refuse(Refused(408, f"the head has not come within {self.limits.head_timeout_s:g} s", close=True))
        elif now - self._since > (self.timeout_keep_alive if self.asked else self.limits.head_timeout_s):
            self.shutdown()

    def shutdown(self) -> None:
        """End it, once what is in hand is answered, and what its client has sent by now: closed, it would be lost."""
        self._leaves = True
        if not self._at_rest or not (self._head_begun or has_unread(self.transport)):
            super().shutdown()

    def drop(self) -> bool:
        """See ClientConnection; nothing is in hand, and TLS would wait for its client's farewell."""
        return aborted(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what has come."""
        super().connection_lost(exc)
        if isinstance(self.cycle, DirectCycle):
            self.cycle.leave()
        self.open.discard(self)
        self._ahead = ReadAhead()

    def _refuse(self, refused: Refused, why: str = "") -> None:
        """Answer what cannot be read, unless it is answered already, and end the connection."""
        answered = self._body is not None and self.cycle.response_started
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not answered:
            self._write_refusal(refused, why)
        self._close_after_lingering()

    def _write_refusal(self, refused: Refused, why: str = "") -> None:
        identity = replies.new_id()
        log.info("%s %d %s", identity, refused.status, why or refused.logged, extra={"fields": {"request_id": identity}})
        if self.observer is not None:
            self.observer.refused(self.peer, identity, refused.status, why or refused.logged)
        reply = replies.refusal(refused, identity)
        self.transport.write(head_of(reply, []) + b"\r\n" + reply.body)

    def _close_after_lingering(self) -> None:
        self._ended = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
