"""The gateway's server: it listens, says so, and ends in order; what "in order" means stands in slotwise.frontend.serve."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slotwise.frontend.frontend import Gateway
from slotwise.frontend.handover import Handover
from slotwise.frontend.http.handshakes import FrontConfig, FrontServer
from slotwise.frontend.keeper import close_for_all
from slotwise.frontend.listening import listen_on
from slotwise.frontend.succession import Starting

if TYPE_CHECKING:
    from slotwise.frontend.grpc.server import GrpcServer

log = logging.getLogger("slotwise.gateway")

KEEP_ALIVE_S = 75
CONNECTIONS_POLL_S = 0.1
SOCKETS_LOOK_S = 0.01  # the loop looks at its sockets once more: what a client has sent by now is answered, not cut off


class DrainingServer(FrontServer):
    """A server that drains before it stops. slotwise.interrupts handles signals: they call `end`."""

    def __init__(
        self,
        config: FrontConfig,
        gateway: Gateway,
        delay_s: float,
        is_up: Callable[[], None],
        grpc: GrpcServer | None,
        sockets: Sequence[socket.socket],
        starting: Starting | None,
    ) -> None:
        super().__init__(config)
        self.grpc = grpc
        self.gateway, self.delay_s, self.is_up = gateway, delay_s, is_up
        self.was_up = False
        self.starting, self.handover = starting, Handover(sockets, self.replaced, self.end)
        self._unused: asyncio.Task[None] | None = None  # waits, where there is a successor, until no connection is left

    def end(self) -> None:
        """The first signal starts the drain, the second ends it; before it is up, the first ends it."""
        if not self.was_up:
            self.should_exit = True
            return
        if self.gateway.draining:
            self.should_exit = self.force_exit = True
            return
        self.gateway.draining = True
        if self._unused:
            self._stop()
            return
        self._loop.call_soon_threadsafe(self._loop.call_later, self.delay_s, self._stop)

    def replaced(self) -> None:
        """A successor accepts connections: accept none, have clients leave at their next answer, end with the last one."""
        if not self.was_up:
            self.should_exit = True
            return
        if self._unused or self.gateway.draining:
            return
        log.info("replaced: no connection is accepted any more")
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append((b"connection", b"close"))
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for cycle in filter(None, (getattr(one, "cycle", None) for one in self.server_state.connections)):
            if not cycle.response_started:
                cycle.keep_alive = False  # what is in hand has taken the headers of before
        self._unused = self._loop.create_task(self._end_unused())

    async def _end_unused(self) -> None:
        """What is idle may stay as long as it always may: closed earlier, it could be just when a request comes."""
        until = time.monotonic() + KEEP_ALIVE_S
        if self.grpc:
            await self.grpc.stop(self.config.timeout_graceful_shutdown)
        while self.server_state.connections and time.monotonic() < until:
            await asyncio.sleep(CONNECTIONS_POLL_S)
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `is_up`. Raises SlotwiseError where another program has a port by now."""
        self._loop = asyncio.get_running_loop()
        for one in sockets or ():  # uvloop says nothing where it cannot
            listen_on(one, self.config.backlog)
        if self.grpc:
            await self.grpc.bind()
        await super().startup(sockets)
        if not self.should_exit:
            if self.grpc:
                await self.grpc.start()
            self.was_up = True
            self.handover.listen(self._loop)
            self.is_up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; where a second signal has come, end the application, too, which uvicorn would leave to fail with the loop."""
        if self.grpc:  # beside HTTP's end, which waits for such tasks
            ending = self._loop.create_task(self.grpc.stop(self.config.timeout_graceful_shutdown))
            self.server_state.tasks.add(ending)
            ending.add_done_callback(self.server_state.tasks.discard)
        if not self._unused and not self.handover.successors:  # whose sockets they are, too
            close_for_all(sockets or [])
        before = self.starting.predecessor if self.starting else None  # may still answer what it had in flight
        its_end = self._loop.create_task(before.end(self._loop, self.config.timeout_graceful_shutdown or 0)) if before else None
        await asyncio.sleep(SOCKETS_LOOK_S)
        await super().shutdown(sockets)
        while its_end and not its_end.done() and not self.force_exit:
            await asyncio.wait({its_end}, timeout=CONNECTIONS_POLL_S)
        if its_end:
            its_end.cancel()
        self.handover.close()
        if self.force_exit:
            if self.grpc:
                await self.grpc.stop(None)
            await self.lifespan.shutdown()
