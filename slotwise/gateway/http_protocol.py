"""uvicorn's HTTP/1.1, with fewer copies of a body, and with a refusal of what is no HTTP that looks like every other error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotwise.gateway import replies

log = logging.getLogger("slotwise.gateway")

RECEIVED = memoryview(bytearray(256 * 1024))  # of all connections: what was read is parsed before the next is read


class Receiver(asyncio.BufferedProtocol):
    """One connection, read into RECEIVED: the parser copies the body from there, and no read makes an object of its own."""

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
        return RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        self._http.data_received(RECEIVED[:nbytes])


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._parts: list[bytes] = []  # of a body, from one read

    def data_received(self, data: bytes | memoryview) -> None:
        """Wake up the request that waits for it, once; stop reading where it has enough to do.

        Not for one that is answered: the rest of its body is only read away, and nobody would begin to read again.
        """
        super().data_received(data)  # type: ignore[arg-type]  # httptools reads either
        self._hand_over()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and cycle.body and not cycle.response_complete:
            cycle.message_event.set()
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body as it came, which often is all of it; uvicorn would copy it twice."""
        if not self.cycle.response_complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The body has ended; another request may follow in the same read."""
        self._hand_over()
        super().on_message_complete()

    def _hand_over(self) -> None:
        if self._parts:
            read, self._parts = b"".join(self._parts), []
            self.cycle.body = self.cycle.body + read if self.cycle.body else read  # type: ignore[assignment]

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
