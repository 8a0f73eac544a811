"""uvicorn's HTTP/1.1, whose refusal of what is no HTTP looks like every other error."""

from __future__ import annotations

import logging

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slotwise.gateway import replies

log = logging.getLogger("slotwise.gateway")


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

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
            cycle.body = cycle.body + body if cycle.body else body

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
