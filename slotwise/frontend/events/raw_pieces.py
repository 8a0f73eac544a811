"""One answer as its pieces are, each a chunk of the body: how TorchServe streams, to whoever asks.

Where the answer breaks off the connection does, too: without its last chunk no client takes it for whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slotwise.backends.exchange import RawHeaders
from slotwise.frontend import replies
from slotwise.frontend.events.event_stream import EVENTS, EventClient, EventStream
from slotwise.frontend.events.piece_stream import Opened, PieceStream, bytes_of
from slotwise.frontend.inference_request import InferenceRequest


def opens_for_all(client: EventClient | None, piece_timeout_s: Callable[[InferenceRequest], float]) -> Opened:
    """What opens everybody's stream: events for who asks for them, else the pieces as they are.

    A model that never streams answers whole whatever is accepted: TorchServe reads no Accept.
    piece_timeout_s(request): how long each may take; 0: its model answers whole, or only who asks for events gets some.
    """

    def opened(request: InferenceRequest, headers: RawHeaders) -> PieceStream | None:
        timeout_s = piece_timeout_s(request)
        if timeout_s:  # where to go on is its handler's business
            headers = [header for header in headers if header[0] != b"last-event-id"]
        events = GivenEvents.asked(request, headers, client)
        raw = RawPieces(request, client, timeout_s) if client is not None and timeout_s else None
        if events is None:
            return raw
        events.needed, events.raw = False, raw
        return events

    return opened


class RawPieces(PieceStream):
    """The pieces to this client, which may get the answer whole as well. piece_timeout_s: how long each may take."""

    def __init__(self, request: InferenceRequest, client: EventClient, piece_timeout_s: float) -> None:
        super().__init__(request, needed=False)
        self.client, self.piece_timeout_s = client, piece_timeout_s

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.client.waiting

    def begin(self, headers: RawHeaders) -> None:
        """Send the head."""
        request = self.request
        passed = replies.passed_on(headers, request.gateway.options.to_client)
        passed += [(b"x-request-id", request.identity.encode()), *replies.ANSWER]
        if request.gateway.draining:
            passed.append((b"connection", b"close"))
        self.client.begin(passed)

    def send(self, piece: bytes) -> None:
        """Send a piece; an empty chunk would be the end."""
        next_by = min(time.monotonic() + self.piece_timeout_s, self.request.client_deadline)
        self.request.deadline = max(self.request.deadline, next_by)
        if data := bytes_of(piece):
            self.client.write(data)

    def end(self, status: int, body: bytes) -> None:
        """Send the last chunk, or none."""
        if status < 400:
            self.client.end()
        else:
            self.client.abort()

    def abort(self) -> None:
        """Cut the connection off."""
        self.client.abort()


class GivenEvents(EventStream):
    """The pieces as events. raw: sends them as they are, where the type of the answer says that its handler writes events."""

    raw: RawPieces | None = None

    def begin(self, headers: RawHeaders) -> None:
        """Send the head."""
        if self.raw is not None and EVENTS in dict(headers).get(b"content-type", b"").decode("latin-1").lower():
            self.raw.begin(headers)
        else:
            self.raw = None
            super().begin(headers)

    def send(self, piece: bytes) -> None:
        """Send a piece."""
        if self.raw is not None:
            self.raw.send(piece)
        else:
            super().send(piece)

    def end(self, status: int, body: bytes) -> None:
        """Send the end."""
        if self.raw is not None:
            self.raw.end(status, body)
        else:
            super().end(status, body)
