"""Accept connections of TLS: one whose handshake is not over counts to the limits, and is given no longer than a head is.

asyncio's own servers tell of a connection once its handshake is over. Until then nobody knew whose it is, nor could end it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from slotwise.backends.interface import Refused
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.http.client_connections import OpenConnections, has_unsent
from slotwise.frontend.http.http_protocol import GatewayProtocol
from slotwise.frontend.http.receiver import Receiver

log = logging.getLogger("slotwise.gateway")

AT_ONCE = 32  # are accepted, before others have their turn; those that make room are closed by then
FULL, AGAIN_S = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 1.0  # so long nothing is accepted then
FAREWELL_S = 1.0  # for an idle client to answer that TLS ends, at the front's end


class FrontConfig(uvicorn.Config):
    """How uvicorn serves a front. connections: that are open. files: for TLS; None: there is none."""

    def __init__(self, app: Any, connections: OpenConnections, files: CertificateFiles | None, **given: Any) -> None:
        super().__init__(app, http=partial(Receiver, connections), **given)  # type: ignore[arg-type]  # any protocol will do
        self.connections, self.files = connections, files


class FrontServer(uvicorn.Server):
    """uvicorn's server, but for TLS, and for signals: they are somebody else's business."""

    def __init__(self, config: FrontConfig) -> None:
        super().__init__(config)
        self.config: FrontConfig = config

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        files = self.config.files
        await super().startup([] if files else sockets)
        if files:
            self.servers += [TlsListener(self, files, one) for one in sockets or ()]  # type: ignore[misc]  # they close alike


class TlsListener:
    """Accepts the connections of one socket."""

    def __init__(self, front: FrontServer, files: CertificateFiles, listening: socket.socket) -> None:
        self.front, self.files, self.listening = front, files, listening
        self.loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(front.config.backlog)
        self._listen()

    def close(self) -> None:
        """Accept nothing more."""
        if self._again:
            self._again.cancel()
        self.loop.remove_reader(self.listening)

    async def wait_closed(self) -> None:
        """Nothing of it is left."""

    def _listen(self) -> None:
        self.loop.add_reader(self.listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.loop.remove_reader(self.listening)  # for good where it was shut down
                if error.errno in FULL:
                    log.error("no connection can be accepted: %s", error.strerror)
                    self._again = self.loop.call_later(AGAIN_S, self._listen)
                return
            Handshake(self.front, self.files, connection, str(address[0])).begin()


class Handshake:
    """One connection until its handshake is over (ClientConnection)."""

    asked = 0

    def __init__(self, front: FrontServer, files: CertificateFiles, connection: socket.socket, peer: str) -> None:
        self.front, self.context, self.connection, self.peer = front, files.context, connection, peer
        self.open = front.config.connections
        self.loop = asyncio.get_running_loop()
        self.idle_since: float | None = self.loop.time()

    def begin(self) -> None:
        """Take it in, where there is room; of those for which there is none a few are told so, once it is over."""
        try:
            self.open.add(self)
        except Refused:
            if not self.open.lingers(self):
                self.connection.close()
                return
        self.connection.setblocking(False)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.front.server_state.connections.add(self)  # type: ignore[arg-type]  # it ends as others do
        self._shaking = self.loop.create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        try:
            await self.loop.connect_accepted_socket(
                partial(Secured, self),
                self.connection,
                ssl=self.context,
                ssl_handshake_timeout=self.open.limits.head_timeout_s,
            )
        except (OSError, ssl.SSLError) as error:
            log.debug("no TLS with %s: %s", self.peer, error)
        finally:
            self.over()

    def over(self) -> None:
        """It is over, one way or the other: what comes then counts by itself."""
        self.open.discard(self)
        self.front.server_state.connections.discard(self)

    def look(self, now: float) -> None:
        """The handshake has a time of its own."""

    def drop(self) -> bool:
        """Make room: the handshake fails then."""
        self.shutdown()
        return True

    def shutdown(self) -> None:
        """End it."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class SecuredProtocol(GatewayProtocol):
    """One connection of HTTP over TLS."""

    def shutdown(self) -> None:
        """End it, once what is in hand is answered. An idle client does not read that TLS ends: it would be waited for."""
        super().shutdown()
        if self.transport.is_closing():
            self._cut_off_later()

    def _cut_off_later(self) -> None:
        self.loop.call_later(FAREWELL_S, self._cut_off)

    def _cut_off(self) -> None:
        if self in self.connections:
            self._cut_off_later() if self._on_its_way() else self.transport.abort()

    def _on_its_way(self) -> bool:
        """Whether some of an answer is, wherever it waits."""
        return has_unsent(self.transport) or self.transport.get_write_buffer_size() > 0


class Secured(Receiver):
    """A connection whose handshake is over."""

    protocol = SecuredProtocol

    def __init__(self, handshake: Handshake) -> None:
        front = handshake.front
        super().__init__(handshake.open, config=front.config, server_state=front.server_state, app_state=front.lifespan.state)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.over()
        super().connection_made(transport)
