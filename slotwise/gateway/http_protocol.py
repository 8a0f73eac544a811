"""uvicorn's HTTP/1.1, with fewer copies of a body and one write for an answer; what is no HTTP is refused as everything else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotwise.gateway import replies

log = logging.getLogger("slotwise.gateway")


class HeadWithBody:
    """A transport that keeps the head of an answer until its body comes: one write, so that the client wakes up once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it, after the head that waits; a head waits itself."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self.flush()
        self._transport.close()


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Write through HeadWithBody."""
        self.together = HeadWithBody(transport)
        super().connection_made(cast("asyncio.Transport", self.together))

    def on_response_complete(self) -> None:
        """An answer is complete."""
        self.together.flush()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Wake up the request that waits for it, once; stop reading where it has enough to do."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and cycle.more_body and cycle.body:
            cycle.message_event.set()
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body as it came; uvicorn would copy it twice."""
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body = cycle.body + body if cycle.body else body  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, and close the connection."""
        identity = replies.new_id()
        log.info("%s 400 %s", identity, msg)
        body = replies.error_body(400, "this is no valid HTTP request", identity)
        headers = [
            replies.JSON_TYPE,
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", identity.encode()),
            (b"connection", b"close"),
            *replies.ANSWER,
            *replies.SECURITY,
        ]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body)
        self.transport.close()
