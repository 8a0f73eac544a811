"""One answer that its client gets piece by piece, in whatever form: counted, within the memory, and at its client's pace.

Nothing is sent before the first piece, so an error until then has its real status. Who reads so slowly that much waits is cut
off: nobody else waits for that client.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders, Refused
from slotwise.frontend.inference_request import InferenceRequest

log = logging.getLogger("slotwise.gateway")

MOST_WAITING = 256 * 1024  # bytes that a client has not taken yet


def bytes_of(piece: bytes) -> bytes:
    """A piece as it is sent where no form is asked for: its text, or its JSON. A handler's bytes come as they were."""
    said = text_of(piece)
    try:
        return said.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return said.encode("utf-8", "surrogatepass")


def as_piece(body: bytes) -> bytes:
    """A whole answer as one piece."""
    return json.dumps({"text": body.decode("utf-8", "surrogateescape")}).encode("ascii")


def text_of(piece: bytes) -> str:
    """What a piece says, where it is a text and nothing else; the JSON of any other piece."""
    try:
        content = json.loads(piece)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and content.keys() == {"text"} and isinstance(content["text"], str):
        return content["text"]
    return piece.decode("utf-8", "surrogateescape")


class PieceStream:
    """Takes the pieces of one request's answer (exchange.PieceSink). needed: a whole answer will not do.

    only_pieces: a whole answer of a model that streams is sent as a piece. begun: something was sent. open: and the end was
    not. A subclass says how each piece is sent, and how the end.
    """

    def __init__(self, request: InferenceRequest, needed: bool) -> None:
        self.request, self.needed, self.only_pieces = request, needed, needed
        self.begun = self.open = False
        self.count = 0
        self.numbers = request.gateway.metrics.stream(request.label)
        self.taken_at = 0.0

    # What forms do differently.

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet."""
        raise NotImplementedError

    def begin(self, headers: RawHeaders) -> None:
        """Send what comes before the first piece. headers: of the answer."""

    def send(self, piece: bytes) -> None:
        """Send a piece."""
        raise NotImplementedError

    def end(self, status: int, body: bytes) -> None:
        """Send the end: it is whole, or the error of this status."""
        raise NotImplementedError

    def abort(self) -> None:
        """Send nothing more: the client has gone, or is cut off."""
        raise NotImplementedError

    # What all of them do alike.

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        """Send a piece. Raises Refused where the client is too slow, or there is no memory for what it was sent."""
        if self.begun and self.waiting > MOST_WAITING:
            named = self.request.named
            log.info("%s %s the client does not read its stream", self.request.identity, self.request.label, extra=named)
            self.numbers.cut_off.inc()
            self.abort()
            raise Refused(CLIENT_GONE, "the client does not read its stream")
        self.request.hold_bytes(self.request.memory_bytes + len(piece))  # the queue keeps it until the end
        before, self.taken_at = self.taken_at, time.monotonic()
        if not self.begun:
            self._begin(headers)
            self.numbers.first_piece.observe(self.taken_at - (self.request.sent_at or self.taken_at))
        else:
            self.numbers.between_pieces.observe(self.taken_at - before)
        self.count += 1
        if (way := self.request.watch()) is not None:
            way.piece()
        self.numbers.pieces.inc()
        self.send(piece)

    def _begin(self, headers: RawHeaders) -> None:
        self.begun = self.open = True
        self.numbers.open.inc()
        self.begin(headers)

    def finish(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Tell the end of it, good or bad. Returns False where nothing was sent yet, and it is an ordinary answer."""
        if not self.begun:
            if status >= 400 or (body and not self.only_pieces):
                return False
            self._begin(headers)
            if body:
                self.count += 1
                self.send(as_piece(body))
        self.stop()
        if status == CLIENT_GONE:
            self.abort()
        else:
            self.end(status, body)
        return True

    def stop(self) -> None:
        """The answer is over: nothing is sent by itself any more. May be called twice."""
        if self.open:
            self.open = False
            self.numbers.open.dec()


Opened = Callable[[InferenceRequest, RawHeaders], PieceStream | None]  # what takes a request's pieces; the headers are its own
