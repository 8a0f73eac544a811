"""A gRPC service: its calls are let in, their messages read, and those that are refused ended.

A call's message is read only when it is let in and few others are being read (reading_places.py): gRPC holds a whole one in
memory. What is being read takes no more than bodies may take in all, and what has been read is counted among them. A client may
have as many calls at once as connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from slotwise.backends.interface import Refused
from slotwise.frontend import replies
from slotwise.frontend.admission.reading_places import ReadingPlaces
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.call import Call, code_of
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.protocols.records import NOT_AS_ASKED, ProtocolFault

log = logging.getLogger("slotwise.gateway")

Messages = AsyncIterator[bytes]  # of one call: one
Answer = Callable[[Call, Messages], Awaitable[bytes | None]]
Method = Callable[[Messages, Any], Awaitable[bytes | None]]  # as grpcio calls it
Written = TypeVar("Written", bound=bytes | None)

FEWEST_READ = 4  # messages that may be read at once, however large they may be
IDLE_S = 1.0  # for which a call that may have many messages keeps its place, where others wait
COPIES_READ = 2  # of a message that gRPC reads: in pieces, then as one


@dataclass(frozen=True)
class CallEnd:
    """How a call ends that was refused. status: of HTTP, for the log, and what that says of it: no client's own words."""

    status: int
    code: grpc.StatusCode
    details: str
    retry_after_s: int = 0
    logged: str = ""


class GrpcService:
    """A service whose messages come and go as bytes. answers: its methods, and what answers each.

    name: of the service, package included. streamed: the methods that answer with a stream; they return its last message,
    or None. under_way: what was asked of models, also by who is gone.
    """

    def __init__(
        self,
        gateway: Gateway,
        limits: ConnectionLimits,
        name: str,
        answers: Mapping[str, Answer],
        streamed: Collection[str] = (),
    ) -> None:
        self.gateway, self.limits, self.name, self.streamed = gateway, limits, name, streamed
        self.trusted = gateway.options.trusted_proxies
        count = max(FEWEST_READ, gateway.body_memory.max_bytes // (COPIES_READ * gateway.backend.max_body_bytes))
        self._places = ReadingPlaces(count, limits.head_timeout_s)
        self._calls: Counter[str] = Counter()  # by client
        self._count = 0  # of all
        self._lingering = 0
        self._told: set[Callable[[], None]] = set()  # of the end
        self.under_way: set[asyncio.Task[Any]] = set()
        self.methods = {method: self._method(method, answer) for method, answer in answers.items()}

    # What services do differently.

    def let_in(self, method: str, call: Call) -> None:
        """See whose call it is. Raises what `end_of` knows where it is not let in."""

    def took(self, method: str, call: Call, code: grpc.StatusCode) -> None:
        """A call that was answered, or refused, ends with this code."""

    def end_of(self, error: Exception) -> CallEnd | None:
        """How a call ends in which this was raised; None where nobody foresaw it."""
        if isinstance(error, ProtocolFault):
            return CallEnd(error.status, code_of(error.status), error.message, logged=NOT_AS_ASKED)
        if isinstance(error, Refused):
            return CallEnd(error.status, code_of(error.status), error.message, error.retry_after_s, error.logged)
        return None

    # What all of them do alike.

    def handlers(self) -> dict[str, Any]:
        """Its methods for grpcio. A call's one message is a stream to it, so that it is not read before it is wanted."""
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        return {
            name: many(_streamed(method)) if name in self.streamed else one(method) for name, method in self.methods.items()
        }

    def _method(self, name: str, answer: Answer) -> Method:
        async def method(messages: Messages, context: Any) -> bytes | None:
            call = Call(context, self.gateway.options.timeout_s)
            observer = self.gateway.observer
            if observer is None:
                return await self._let_in(name, call, context, answer, messages)
            call.begin(observer, f"/{self.name}/{name}")
            status = 0
            try:
                written = await self._let_in(name, call, context, answer, messages)
                status = 200
                return written
            finally:
                observer.end(call.scope(""), status)

        return method

    async def _let_in(self, name: str, call: Call, context: Any, answer: Answer, messages: Messages) -> bytes | None:
        """One call, whatever becomes of it."""
        try:
            self.let_in(name, call)
            context.set_trailing_metadata((("x-request-id", call.identity),))
            with self._counted(call):
                written = await answer(call, messages)
            self.took(name, call, grpc.StatusCode.OK)
            return written
        except Exception as error:
            end = self.failed(name, call, error)
        self.took(name, call, end.code)
        await call.abort(end.code, end.details, end.retry_after_s)
        return b""  # not reached

    def failed(self, name: str, call: Call, error: Exception) -> CallEnd:
        """How a call ends in which this was raised, which is logged."""
        end = self.end_of(error)
        if end is None:
            log.error("%s %s", call.identity, name, extra=_named(call), exc_info=error)
            end = self.end_of(Refused(500, replies.CRASH)) or CallEnd(500, grpc.StatusCode.INTERNAL, replies.CRASH)
        logged = end.logged or replies.phrase(end.status)
        log.info("%s %s %d %r", call.identity, name, end.status, logged, extra=_named(call))
        if call.seen is not None:
            call.seen.status, call.seen.reason = end.status, call.seen.reason or logged
        return end

    @contextmanager
    def _counted(self, call: Call) -> Iterator[None]:
        """One more call of its client, while it lasts. Raises Refused (429)."""
        client = call.client(self.trusted)
        if client and self._calls[client] >= self.limits.max_connections_per_address:
            raise Refused(429, "too many calls of this client at once", retry_after_s=1)
        if self._count >= self.limits.max_connections:
            raise Refused(429, "too many calls at once", retry_after_s=1)
        self._calls[client] += 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._calls -= Counter([client])  # what comes to 0 is forgotten

    async def read(self, messages: Messages, call: Call) -> bytes:
        """The call's message. Raises Refused (503, 504), or ProtocolFault where there is none, or more than one.

        It is read to its end: grpcio keeps the message of a reader that was left before, until Python looks for garbage.
        """
        try:
            async with asyncio.timeout(max(call.deadline - time.monotonic(), 0)), self._place(call):
                message, count = b"", 0
                async for one in messages:
                    message, count = one, count + 1
        except TimeoutError:
            raise Refused(504, "the deadline passed before the message had arrived") from None
        if count != 1:
            raise ProtocolFault("the call has no message" if not count else "the call has more than one message")
        return message

    async def read_next(self, messages: Messages, call: Call) -> bytes | None:
        """The next message of a call that may have many; None: there are no more. Raises Refused (503) where others wait."""
        async with self._place(call, IDLE_S):
            return await anext(messages, None)

    @contextmanager
    def told_of_end(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within, a call that may have many requests goes on. stop(): has it take no more."""
        self._told.add(stop)
        try:
            yield
        finally:
            self._told.discard(stop)

    def end_soon(self) -> None:
        """Have no call take further requests."""
        for stop in [*self._told]:
            stop()

    def may_linger(self) -> bool:
        """Whether one more call may go on that lost its place: a message that comes for it is in memory all the same."""
        return self._lingering < self._places.count

    @contextmanager
    def lingering(self, has_no_place: bool) -> Iterator[None]:
        """Within, a call goes on. has_no_place: it lost the one for its next message."""
        self._lingering += has_no_place
        try:
            yield
        finally:
            self._lingering -= has_no_place

    def _place(self, call: Call, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """A place for reading one message."""
        client = call.client(self.trusted)
        connection = client if call.through(self.trusted) else call.connection
        return self._places.place(client, connection, patience_s)

    async def to_its_end(
        self, call: Call, asking: Coroutine[Any, Any, Written], writing: Callable[[], Awaitable[None]] | None = None
    ) -> Written:
        """The answer. Where the client hangs up, what is at the server keeps its place until it is answered, as over HTTP.

        writing(): writes what comes before the answer, until there is no more of it.
        """
        task = self.start(asking)
        try:
            if writing is not None:
                await writing()
            return await asyncio.shield(task)
        except BaseException:
            if not task.done():  # it hung up, or cannot be written to
                call.gone.set()
                call.left()
            raise
        finally:
            del task  # else its error would hold this frame, and that the task: with its message, until a collection

    def start(self, asking: Coroutine[Any, Any, Written]) -> asyncio.Task[Written]:
        """Have it go on, whether or not its client waits."""
        task = asyncio.create_task(asking)
        self.under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.under_way.discard(task)
        if not task.cancelled():
            task.exception()  # was raised in the call, unless its client is gone


def _named(call: Call) -> dict[str, Any]:
    return {"fields": {"request_id": call.identity}}


def _streamed(method: Method) -> Callable[[Messages, Any], Awaitable[None]]:
    """The method as one that answers with a stream."""

    async def stream(messages: Messages, context: Any) -> None:
        last = await method(messages, context)
        if last is not None:
            await context.write(last)

    return stream
