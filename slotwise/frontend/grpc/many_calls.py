"""A server of grpcio that takes many calls in one turn of the event loop.

By itself grpcio takes one in five turns. It also reads one byte a turn of the socket that wakes it, which gets one an event,
and stops where that socket is full: then it is one event a turn, a quarter of a call. Where turns are long, because this
process or its machine has much to do, one client that floods it with calls keeps everybody waiting. And gRPC ends calls that
nobody has taken for 30 s, or that are beyond a thousand, as CANCELLED, though nobody has cancelled them.

This reaches into grpcio. Where what it needs is not there as it should be, grpcio goes its own pace.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc

log = logging.getLogger("slotwise.gateway")

AT_ONCE = 32  # calls of one method that are taken in a turn, or two
WAKE_UPS = 1 << 16  # bytes
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]


class ManyCalls:
    """A server with this service's methods. It has its ports as `server` gets them."""

    def __init__(self, service: str, handlers: Handlers, options: Sequence[tuple[str, Any]]) -> None:
        self.server = grpc.aio.server(options=options)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
        self.handlers: Handlers = {}
        self._answering: set[asyncio.Task[None]] = set()
        if _is_as_known():
            self.server.add_registered_method_handlers(service, dict(handlers))
            self.handlers = {f"/{service}/{method}": handler for method, handler in handlers.items()}
        else:
            log.warning("this version of grpcio is not known: under load it takes few calls at once")

    async def start(self) -> None:
        """Take calls, until the server stops."""
        await self.server.start()
        takers = [asyncio.create_task(self._take(method)) for method in self.handlers for _ in range(AT_ONCE)]
        self._answering.update(takers)
        for taker in takers:
            taker.add_done_callback(self._answering.discard)

    async def _take(self, method: str) -> None:
        loop, core = asyncio.get_running_loop(), self.server._server
        while True:
            try:
                state = await core._request_registered_call(method.encode())
            except cygrpc._RequestCallError:
                return  # the server stops
            coroutine = cygrpc._handle_rpc(method, self, (), state, loop, False)
            call = loop.create_task(cygrpc._schedule_rpc_coro(coroutine, state, loop, method))
            self._answering.add(call)
            call.add_done_callback(self._answering.discard)

    def resolve_handler(self, details: Any) -> grpc.RpcMethodHandler[Any, Any] | None:
        """What answers a call; grpcio asks for it."""
        return self.handlers.get(details.method)


class _WakeUps(socket.socket):
    """The end at which grpcio reads one byte, and gets all that there are."""

    def recv(self, count: int, flags: int = 0) -> bytes:
        return super().recv(WAKE_UPS, flags)


def _socketpair() -> tuple[socket.socket, socket.socket]:
    reads, writes = socket.socketpair()
    return _WakeUps(reads.family, reads.type, reads.proto, reads.detach()), writes


cygrpc.socket = SimpleNamespace(**{**vars(socket), "socketpair": _socketpair})  # before grpcio makes the one that it has


def _is_as_known() -> bool:
    """Whether this grpcio has what is used here, with these arguments."""
    known = {
        "_handle_rpc": ("method_name", "method_resolver", "interceptors", "rpc_state", "loop", "concurrency_exceeded"),
        "_schedule_rpc_coro": ("rpc_coro", "rpc_state", "loop", "method_name"),
    }
    try:
        there = {name: tuple(inspect.signature(getattr(cygrpc, name)).parameters) for name in known}
    except (AttributeError, TypeError, ValueError):
        return False
    return there == known and hasattr(cygrpc.AioServer, "_request_registered_call") and hasattr(cygrpc, "_RequestCallError")
