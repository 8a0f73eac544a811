"""Read every connection into one buffer; what comes is taken apart by http_protocol."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from slotwise.frontend.http.client_connections import OpenConnections
from slotwise.frontend.http.http_protocol import GatewayProtocol

RECEIVED = bytearray(256 * 1024)  # of all connections: what was read is taken apart before the next is read
WHOLE = memoryview(RECEIVED)


class Receiver(asyncio.BufferedProtocol):
    """One connection, read into RECEIVED: no read makes an object of its own."""

    protocol = GatewayProtocol

    def __init__(self, connections: OpenConnections, **given: Any) -> None:
        self._http = self.protocol(connections, **given)

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
