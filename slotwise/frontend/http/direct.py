"""One request to a model and its answer, past ASGI: a reply's head and body are written at once."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from slotwise.backends.exchange import RawHeaders, Refused
from slotwise.frontend import replies
from slotwise.frontend.admission.large_work import LARGE_BYTES
from slotwise.frontend.forward import NOT_TAKEN, Forward, patience_s
from slotwise.frontend.http.access import Entrance, refusal
from slotwise.frontend.http.request_head import RequestHead
from slotwise.frontend.inference_request import CERTIFICATE, InferenceRequest, Scope
from slotwise.frontend.observing.observer import Observer
from slotwise.frontend.replies import ClientReply

log = logging.getLogger("slotwise.gateway")

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search  # what no header may have in it
_SECURITY = b"".join(b"%s: %s\r\n" % header for header in replies.SECURITY)
_SECURED = frozenset(name for name, _ in replies.SECURITY)
_CLOSE = b"\r\nconnection: close\r\n"


def what_is_read(head: RequestHead, client: object, certified: bool, names: Mapping[str, str]) -> Scope:
    """What the checks and Forward read of a request, as ASGI has it."""
    return {
        "type": "http",
        "client": client,
        "method": head.method,
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "headers": head.headers,
        "http_version": head.version,
        "path_params": names,
        CERTIFICATE: certified,
    }


def head_of(reply: ClientReply, default: RawHeaders) -> bytes:
    """Its status line and headers, but for the empty line. Raises ValueError where one of them would be two.

    default: of every answer that does not have such a header itself, as those of security.
    """
    own, secured = {name for name, _ in reply.headers}, _SECURITY
    if default:
        default = [header for header in default if header[0] not in own]
    if not own.isdisjoint(_SECURED):
        secured = b"".join(b"%s: %s\r\n" % header for header in replies.SECURITY if header[0] not in own)
    lines = [b"%s: %s" % header for header in (*default, *reply.headers)]
    if _CONTROL(b"".join(lines)):
        raise ValueError("a header has a control character in it")
    return STATUS_LINE[reply.status] + b"\r\n".join(lines) + b"\r\n" + secured


class DirectCycle(RequestResponseCycle):
    """A request to a model, as the protocol reads it, and its answer."""

    request: InferenceRequest | None = None
    observer: Observer | None = None
    status = bytes_out = 0  # of an answer that somebody observes
    written = 0  # bytes of an answer that goes piece by piece

    @property
    def closes(self) -> bool:
        """Whether its connection ends with it."""
        return not self.keep_alive

    @property
    def without_body(self) -> bool:
        """Whether its client wants the head alone: it would take a body for the beginning of the next answer."""
        return self.scope["method"] == "HEAD"

    def leave(self) -> None:
        """Its client has gone."""
        if self.request is not None:
            self.request.leave()

    async def run(self, entrance: Entrance) -> None:
        """Answer it, whatever happens."""
        self.entrance, self.began = entrance, time.monotonic()
        try:
            try:
                entrance.check(self.scope)  # type: ignore[arg-type]
            except Refused as refused:
                if not self.disconnected:  # else what came with its head could not be read, which is answered already
                    self._write(refusal(self.scope, refused))  # type: ignore[arg-type]
                return
            await self._answer(entrance.forward)
        except Exception:
            log.exception("%s", "" if self.request is None else self.request.identity)
            self._crash()
        finally:
            self.on_response = lambda: None
            if self.observer is not None:
                self.observer.end(self.scope, self.status, self.bytes_out)

    async def _answer(self, forward: Forward) -> None:
        request = self.request = forward.request(self.scope)  # type: ignore[arg-type]
        opened = forward.opens(None if self.without_body else DirectEvents(self))
        try:
            reply = await forward.reply(request, self.scope, self.receive, self._whole(), opened)  # type: ignore[arg-type]
            if reply is not None and not self.disconnected:
                await self._send(reply, request)
        finally:
            request.release()

    def _whole(self) -> bytes | None:
        """Its body, where all of it came with its head."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.waiting_for_100_continue = False
        return body

    async def _send(self, reply: ClientReply, request: InferenceRequest) -> None:
        """Send it; a large body is waited for until it was taken. Who is too slow is cut off."""
        if len(reply.body) <= LARGE_BYTES and not self.flow.write_paused:
            self._write(reply)
            return
        try:
            async with asyncio.timeout(patience_s(reply.body)):
                await self.flow.drain()
                if self.disconnected:
                    return
                self._write_all(reply)
                await self.flow.drain()  # until the client has taken most of it
        except TimeoutError:
            log.info(NOT_TAKEN, request.identity, request.label, extra=request.named)
            self.transport.abort()
            await asyncio.sleep(0)  # until the connection knows
            return
        self.complete()

    def _write(self, reply: ClientReply) -> None:
        self._write_all(reply)
        self.complete()

    def head(self, reply: ClientReply) -> bytes:
        """The head of its answer, which begins now."""
        if self.entrance.took is not None:
            self.entrance.took(self.scope, reply.status, self.began)  # type: ignore[arg-type]
        head = head_of(reply, self.default_headers)
        closes = _CLOSE in head
        self.keep_alive &= not self.waiting_for_100_continue  # its body comes now, or never
        if not self.keep_alive and not closes:
            head += _CLOSE[2:]
        self.keep_alive &= not closes
        self.response_started = True
        return head

    def _write_all(self, reply: ClientReply) -> None:
        head = self.head(reply)
        if self.without_body:
            self.transport.write(head + b"\r\n")
        elif len(reply.body) <= LARGE_BYTES:
            self.transport.write(b"%b\r\n%b" % (head, reply.body))
        else:
            self.transport.writelines([head, b"\r\n", reply.body])

    def complete(self) -> None:
        """Its answer is written."""
        self.response_complete = True
        self.message_event.set()
        self.on_response()

    def _crash(self) -> None:
        if self.response_started or self.disconnected:
            self.transport.close()
            return
        self._write(replies.refusal(Refused(500, replies.CRASH), replies.new_id()))


class ObservedCycle(DirectCycle):
    """The same where somebody wants to know."""

    def run(self, entrance: Entrance) -> Coroutine[Any, Any, None]:
        """See DirectCycle."""
        self.observer = entrance.observer
        if self.observer is not None:
            self.observer.begin(self.scope)  # type: ignore[arg-type]
        return DirectCycle.run(self, entrance)

    def head(self, reply: ClientReply) -> bytes:
        """See DirectCycle."""
        self.status, self.bytes_out = reply.status, len(reply.body)
        return DirectCycle.head(self, reply)


class DirectEvents:
    """A client that gets events: in chunks, or until its connection closes where it speaks HTTP/1.0.

    Where that is the body's end, a connection that ends before it is reset: no client takes what has come for whole.
    """

    def __init__(self, cycle: DirectCycle) -> None:
        self.cycle, self.chunked = cycle, True

    @property
    def waiting(self) -> int:
        """Bytes that it has not taken yet."""
        return self.cycle.transport.get_write_buffer_size()

    def begin(self, headers: RawHeaders) -> None:
        """Write the head."""
        self.chunked = self.cycle.scope["http_version"] != "1.0"
        framing = (b"transfer-encoding", b"chunked") if self.chunked else (b"connection", b"close")
        if not self.chunked:
            self._reset_at_end(True)
        self._put(self.cycle.head(ClientReply(200, [*headers, framing], b"")) + b"\r\n")

    def write(self, data: bytes) -> None:
        """Write some of the body."""
        self._put(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        """Write the end."""
        if self.chunked:
            self._put(b"0\r\n\r\n")
        else:
            self._reset_at_end(False)
        if not self.cycle.disconnected:
            self.cycle.complete()

    def abort(self) -> None:
        """Cut the connection off."""
        self.cycle.transport.abort()

    def _reset_at_end(self, wanted: bool) -> None:
        """Whether the connection is reset where it ends, whoever ends it."""
        with suppress(OSError):  # it has ended
            about = self.cycle.transport.get_extra_info("socket")
            about.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", wanted, 0))

    def _put(self, data: bytes) -> None:
        if not self.cycle.disconnected:
            self.cycle.written += len(data)
            self.cycle.transport.write(data)
