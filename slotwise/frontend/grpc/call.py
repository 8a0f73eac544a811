"""One gRPC call: its head as that of an HTTP request, its deadline, and its end where it is refused."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import grpc

from slotwise.backends.exchange import CLIENT_GONE, Refused
from slotwise.frontend import replies
from slotwise.frontend.admission.key_rates import AccessKey
from slotwise.frontend.http.client_address import TrustedProxies, one_client
from slotwise.frontend.observing.observer import SEEN, Observer
from slotwise.frontend.observing.seen_request import SeenRequest

CODES = {  # by HTTP's status; any other below 500 is INVALID_ARGUMENT: to send the same again is no use
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CLIENT_GONE: grpc.StatusCode.CANCELLED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
LONGEST_MESSAGE = 1000  # of an error: it travels as a header


class Call:
    """One call. gone: set when its client waits no more, and left() is called. connection: what gRPC calls the other end of it.
    asked: its message has been read, and goes the way of HTTP's requests. began: on time.monotonic's clock.

    What the context says is read here, when the call begins. Once a call has ended, which its client may do at any moment,
    to ask the context ends the process.
    """

    def __init__(self, context: Any, timeout_s: float) -> None:
        self._context, self.gone, self.began = context, asyncio.Event(), time.monotonic()
        self._begun = self.asked = False
        self.left: Callable[[], None] = lambda: None
        self.connection = context.peer()
        self._sender = _address(self.connection)
        self.headers = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str) and not name.startswith(("grpc-", "content-"))
        ]
        self.key: AccessKey | None = None
        self.seen: SeenRequest | None = None
        self.identity = replies.request_id(_text(dict(self.headers).get(b"x-request-id", b""))) or replies.new_id()
        remaining = context.time_remaining()
        self.client_deadline = math.inf if remaining is None else time.monotonic() + remaining
        self.deadline = min(time.monotonic() + timeout_s, self.client_deadline)

    def part(self, number: int, timeout_s: float) -> Call:
        """One request of a call that has several, with an id and a deadline of its own. It is gone where the call is."""
        one = copy.copy(self)
        one.identity, one.seen, one.left = f"{self.identity}-{number}", None, lambda: None
        one.deadline = min(time.monotonic() + timeout_s, self.client_deadline)
        return one

    def client(self, trusted: TrustedProxies) -> str:
        """Who asks: a key, else an address; "" where the proxies do not say it."""
        return f"key {self.key.name}" if self.key else one_client(trusted.client(self._sender, self.headers))

    def through(self, trusted: TrustedProxies) -> bool:
        """Whether it comes through one of these proxies, whose connections are many clients'."""
        return self._sender in trusted

    def scope(self, version: str) -> dict[str, Any]:
        """The head of the call as that of an HTTP request."""
        headers = [header for header in self.headers if header[0] != b"x-request-id"]
        return {
            "headers": [*headers, (b"x-request-id", self.identity.encode())],
            "path_params": {"version": version},
            "query_string": b"",
            "client": (self._sender,),
            "slotwise.key": self.key,
            SEEN: self.seen,
        }

    def begin(self, observer: Observer, method: str) -> SeenRequest:
        """Have it observed from now on. method: the service's name and its own."""
        self.seen = observer.begin({"method": "gRPC", "headers": self.headers})
        self.seen.path, self.seen.protocol, self.seen.identity = method, "gRPC", self.identity
        return self.seen

    async def write(self, message: bytes) -> None:
        """Send one message of an answer that is a stream. Only from the call's own task.

        Raises Refused where its client has gone. Where this was cancelled, nothing but the call's end can follow.
        """
        try:
            if not self._begun:  # by itself: grpcio does not know that it was sent with a message that was never taken
                self._begun = True
                await _to_its_end(self._context.send_initial_metadata(()))
            await self._context.write(message)
        except grpc.aio.BaseError as error:
            raise Refused(CLIENT_GONE, "the client has gone") from error

    async def abort(self, code: grpc.StatusCode, message: str, retry_after_s: int) -> None:
        """End the call. Only from its own task, which ends with it."""
        trailing = [("x-request-id", self.identity)]
        if retry_after_s:
            trailing.append(("retry-after", str(retry_after_s)))
        sent = message[:LONGEST_MESSAGE].encode("utf-8", "replace").decode()  # a handler's may have half of a surrogate pair
        await self._context.abort(code, sent, tuple(trailing))


def code_of(status: int) -> grpc.StatusCode:
    """The code that stands for this status of HTTP."""
    return CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL)


async def _to_its_end(sending: Coroutine[Any, Any, None]) -> None:
    """Send it, also where this is cancelled: grpcio would send it again with the call's end, which is refused then."""
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _address(peer: str) -> str:
    """The address in what gRPC calls a peer: ipv4:127.0.0.1:50000, ipv6:%5B::1%5D:50000."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
