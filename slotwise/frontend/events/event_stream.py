"""One answer as server-sent events: a piece is `data: {...}`, an error `event: error`, and `event: end` says that it is whole.

Nothing is sent before the first piece, so an error until then has its real status. Comment lines keep an idle connection alive.
Who reads so slowly that much waits is cut off: nobody else waits for that client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import Protocol

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders, Refused
from slotwise.frontend import replies
from slotwise.frontend.inference_request import InferenceRequest

log = logging.getLogger("slotwise.gateway")

EVENTS = "text/event-stream"
TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
UNBUFFERED = (b"x-accel-buffering", b"no")  # of a proxy before us
ALIVE_S = 15.0
ALIVE = b": alive\n\n"
MOST_WAITING = 256 * 1024  # bytes that a client has not taken yet
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


class EventStream:
    """Takes the pieces of one request's answer. needed: a whole answer will not do. begun: its head was sent."""

    def __init__(self, request: InferenceRequest, client: EventClient, needed: bool) -> None:
        self.request, self.client, self.needed = request, client, needed
        self.begun = self.over = False
        self.count = 0
        self.loop = asyncio.get_running_loop()
        self.wrote_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @classmethod
    def asked(cls, request: InferenceRequest, client: EventClient | None, headers: RawHeaders) -> EventStream | None:
        """What takes the answer's pieces; None where it is asked for whole. Raises Refused (400, 406)."""
        accept = b",".join(value for name, value in headers if name == b"accept").decode("latin-1")
        needed = asked_for(accept) if EVENTS in accept.lower() else None
        if needed is None:
            return None
        if client is None or not request.gateway.backend.streams:
            if needed:
                raise Refused(406, NO_STREAMS)
            return None
        if any(name == b"last-event-id" for name, _ in headers):
            raise Refused(400, "a stream does not go on after an event that was sent: ask again without Last-Event-ID")
        return cls(request, client, needed)

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        """Send a piece. Raises Refused where the client is too slow, or there is no memory for what it was sent."""
        if self.begun and self.client.waiting > MOST_WAITING:
            log.info("%s %s the client does not read its stream", self.request.identity, self.request.target)
            self.client.abort()
            raise Refused(CLIENT_GONE, "the client does not read its stream")
        self.request.hold_bytes(self.request.memory_bytes + len(piece))  # the queue keeps it until the end
        if not self.begun:
            self._begin(headers)
        self.count += 1
        self._write(b"data: %b\n\n" % piece)

    def _begin(self, headers: RawHeaders) -> None:
        request = self.request
        passed = [one for one in replies.passed_on(headers, request.gateway.options.to_client) if one[0] != b"content-type"]
        passed += [TYPE, (b"x-request-id", request.identity.encode()), UNBUFFERED, *replies.ANSWER]
        if request.gateway.draining:
            passed.append((b"connection", b"close"))
        self.begun = True
        self.client.begin(passed)
        self.timer = self.loop.call_later(ALIVE_S, self._keep_alive)

    def _write(self, data: bytes) -> None:
        self.wrote_at = self.loop.time()
        self.client.write(data)

    def _keep_alive(self) -> None:
        idle_s = self.loop.time() - self.wrote_at
        if idle_s >= ALIVE_S:
            self._write(ALIVE)
            idle_s = 0.0
        self.timer = self.loop.call_later(ALIVE_S - idle_s, self._keep_alive)

    def finish(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Tell the end of it, good or bad. Returns False where nothing was sent yet, and it is an ordinary answer."""
        if not self.begun:
            if status >= 400:
                return False
            self._begin(headers)
        self.stop()
        if status == CLIENT_GONE:
            self.client.abort()
            return True
        if status < 400:
            self._write(b'event: end\ndata: {"pieces": %d}\n\n' % self.count)
        else:
            lines = b"".join(b"data: %b\n" % line for line in body.splitlines())
            self._write(b"event: error\n%b\n" % lines)
        self.client.end()
        return True

    def stop(self) -> None:
        """Nothing is sent by itself any more."""
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
