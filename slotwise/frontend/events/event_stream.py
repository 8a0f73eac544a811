"""One answer as server-sent events: a piece is `data: {...}`, an error `event: error`, and `event: end` says that it is whole.

Comment lines keep an idle connection alive.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Protocol, Self

from slotwise.backends.exchange import RawHeaders, Refused
from slotwise.frontend import replies
from slotwise.frontend.events.piece_stream import PieceStream
from slotwise.frontend.inference_request import InferenceRequest

EVENTS = "text/event-stream"
TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
UNBUFFERED = (b"x-accel-buffering", b"no")  # of a proxy before us
ALIVE_S = 15.0
ALIVE = b": alive\n\n"
NO_STREAMS = "this server gives no text/event-stream: the answer comes whole, ask for application/json or */*"

_WEIGHT = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*", re.IGNORECASE).fullmatch


class EventClient(Protocol):
    """Who gets the events. waiting: bytes that it has not taken yet."""

    @property
    def waiting(self) -> int:
        """Bytes that it has not taken yet."""

    def begin(self, headers: RawHeaders) -> None:
        """Send the head of the answer."""

    def write(self, data: bytes) -> None:
        """Send some of its body."""

    def end(self) -> None:
        """The body is whole."""

    def abort(self) -> None:
        """Cut the connection off."""


def _accepted(accept: str) -> Iterable[tuple[str, float]]:
    for part in accept.split(","):
        media, *parameters = part.split(";")
        weights = [match[1] for parameter in parameters if (match := _WEIGHT(parameter))]
        if media.strip():
            yield media.strip().lower(), float(weights[0]) if weights else 1.0


def asked_for(accept: str) -> bool | None:
    """Whether nothing but events will do; None where they are not asked for, or another type is preferred."""
    weights = dict(_accepted(accept))
    weight = weights.pop(EVENTS, 0.0)
    if not weight or max(weights.values(), default=0.0) > weight:
        return None
    return not any(weights.values())


class EventStream(PieceStream):
    """The pieces as events, to this client."""

    def __init__(self, request: InferenceRequest, client: EventClient, needed: bool) -> None:
        super().__init__(request, needed)
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.wrote_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @classmethod
    def asked(cls, request: InferenceRequest, headers: RawHeaders, client: EventClient | None = None) -> Self | None:
        """What takes the answer's pieces; None where it is asked for whole. Raises Refused (400, 406)."""
        accept = b",".join(value for name, value in headers if name == b"accept").decode("latin-1")
        needed = asked_for(accept) if EVENTS in accept.lower() else None
        return None if needed is None else cls.opened(request, headers, client, needed)

    @classmethod
    def opened(
        cls, request: InferenceRequest, headers: RawHeaders, client: EventClient | None = None, needed: bool = True
    ) -> Self | None:
        """The same where events are asked for. client: None where the connection can have none."""
        if client is None or not request.gateway.backend.streams:
            if needed:
                raise Refused(406, NO_STREAMS)
            return None
        if any(name == b"last-event-id" for name, _ in headers):
            raise Refused(400, "a stream does not go on after an event that was sent: ask again without Last-Event-ID")
        return cls(request, client, needed)

    # How events are written.

    def piece_event(self, piece: bytes) -> bytes:
        """A piece."""
        return b"data: %b\n\n" % piece

    def end_event(self) -> bytes:
        """The end of an answer that is whole."""
        return b'event: end\ndata: {"pieces": %d}\n\n' % self.count

    def error_event(self, status: int, body: bytes) -> bytes:
        """The end of one that is not. body: the error's JSON."""
        return b"event: error\n%b\n" % b"".join(b"data: %b\n" % line for line in body.splitlines())

    # As PieceStream wants it.

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.client.waiting

    def begin(self, headers: RawHeaders) -> None:
        """Send the head."""
        request = self.request
        passed = replies.passed_on(headers, request.gateway.options.to_client)
        passed = [one for one in passed if one[0] not in replies.OF_A_BODY]
        passed += [TYPE, (b"x-request-id", request.identity.encode()), UNBUFFERED, *replies.ANSWER]
        if request.gateway.draining:
            passed.append((b"connection", b"close"))
        self.client.begin(passed)
        self.timer = self.loop.call_later(ALIVE_S, self._keep_alive)

    def send(self, piece: bytes) -> None:
        """Send a piece."""
        self._write(self.piece_event(piece))

    def end(self, status: int, body: bytes) -> None:
        """Send the end."""
        self._write(self.end_event() if status < 400 else self.error_event(status, body))
        self.client.end()

    def abort(self) -> None:
        """Cut the connection off."""
        self.client.abort()

    def stop(self) -> None:
        """See PieceStream."""
        super().stop()
        if self.timer is not None:
            self.timer.cancel()

    def _write(self, data: bytes) -> None:
        self.wrote_at = self.loop.time()
        if data:
            self.client.write(data)

    def _keep_alive(self) -> None:
        idle_s = self.loop.time() - self.wrote_at
        if idle_s >= ALIVE_S:
            self._write(ALIVE)
            idle_s = 0.0
        self.timer = self.loop.call_later(ALIVE_S - idle_s, self._keep_alive)
