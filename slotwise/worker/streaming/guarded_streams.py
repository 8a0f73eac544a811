"""Serve a guarded handler that sends pieces of its answers, over a host's frames: one request after the other.

Who asked for pieces gets each when theirs sends it. Everybody else gets them in one, at the end. Where nobody waits any more,
theirs runs to its end: it may keep what it clears only there. It is not called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from slotwise.worker.answer import REQUEST_ID, Answer, CheckedHeaders, GivenAnswer, refusal, sent_back
from slotwise.worker.guard.intermediate import Gone
from slotwise.worker.guard.once import OnPiece
from slotwise.worker.guard.owned import Owned
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import BrokenFrame, Frame
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault, SlotError
from slotwise.worker.steps.outlet import OTHER_PIECES, Outlet

if TYPE_CHECKING:
    from slotwise.worker.hosts.framed import HostLink

TURN_S = 1.0  # how often it says that theirs goes on: its pieces may be kept, sent before, or nobody's


class PiecesGuard(Protocol):
    """The guard that is served."""

    @property
    def dead(self) -> bool:
        """Whether the device failed for good."""

    def streamed(self, request: Request, on_piece: OnPiece) -> Answer:
        """The answer to one request: its last piece, where `on_piece` has sent those before it."""

    def take_metrics(self) -> list[list[object]]:
        """The numbers since the last call."""


class GuardedStreams:
    """Serves one guard. as_request(frame): what a REQUEST is, its body not looked at."""

    def __init__(self, local: PiecesGuard, as_request: Callable[[Frame], Request]) -> None:
        self.local, self.as_request = local, as_request
        self.sent: dict[int, list[bytes]] = {}

    def serve(self, link: HostLink, received: Iterator[Frame]) -> None:
        """Serve until the host closes its end, or the device is dead. Raises BrokenFrame, OSError where the host has gone."""
        for frame in received:
            if frame.kind == frames.SENT:
                self.sent.setdefault(frame.id, []).append(frame.body)
            elif frame.kind == frames.REQUEST:
                link.begin([frame])
                self._answer(link, frame)
                link.begin(())
                if metrics := self.local.take_metrics():
                    link.send([frames.of_json(frames.NUMBERS, {"metrics": metrics})])
                if self.local.dead:
                    link.send([Frame(frames.DONE, flags=frames.DEAD)])
                    return
            elif frame.kind != frames.CANCEL:  # what that was about has been answered
                raise BrokenFrame("a second start")

    def _answer(self, link: HostLink, frame: Frame) -> None:
        request = self.as_request(frame)
        stream = _PieceSender(link, frame, request, tuple(self.sent.pop(frame.id, ())))
        answer = self.local.streamed(request, stream.take)
        if self.local.dead:  # without an answer it is in hand when this worker ends, and is known where it ends the next one
            return
        if stream.gone:
            link.send([Frame(frames.PIECE, frame.id)])
        elif answer.status >= 400 or not (stream.begun or stream.sent):
            link.send([frames.of_answer(frame.id, answer)])
        elif not stream.begun:
            link.send([frames.of_answer(frame.id, refusal(ModelFault(OTHER_PIECES), CheckedHeaders()))])
        else:
            stream.end(answer)


class _PieceSender:
    """One request's pieces on their way. begun: theirs has sent one that is to go on by itself. sent: by another worker."""

    def __init__(self, link: HostLink, frame: Frame, request: Request, sent: tuple[bytes, ...]) -> None:
        self.link, self.frame, self.request, self.sent = link, frame, request, sent
        self.outlet = Outlet(sent)
        self.wanted = bool(frame.flags & frames.STREAM)
        self.begun = self.headed = self.gone = False
        self.told_at = time.monotonic()

    def take(self, piece: Owned) -> bool:
        """Send a piece; False where it is to be kept for the whole answer. Raises Gone, or SlotError."""
        if time.monotonic() - self.told_at > TURN_S:
            self.told_at = time.monotonic()
            self.link.send([Frame(frames.BEAT, flags=frames.TURN)])
        if self.link.gone():
            self.gone = True
            raise Gone
        if not self.wanted:
            return False
        self.begun = True
        self._send(piece.body, lambda: _answer_of(piece, self.request))
        return True

    def end(self, answer: Answer) -> None:
        """Send the last piece, and the end; an error where that cannot be."""
        try:
            self._send(answer.body, lambda: answer)
            self.outlet.end()
        except SlotError as error:
            self.link.send([frames.of_answer(self.frame.id, refusal(error, CheckedHeaders()))])
        else:
            self.link.send([Frame(frames.PIECE, self.frame.id)])

    def _send(self, body: bytes, head: Callable[[], Answer]) -> None:
        data = self.outlet.put({"text": body.decode("utf-8", "surrogateescape")})
        if data is None:  # it was sent before
            return
        text = b""
        if not self.headed:
            about = head()
            if about.status >= 400:
                error = SlotError("the handler set this status, and went on with pieces of an answer")
                error.code = about.status
                raise error
            text = frames.answer_text(200, about.content_type, about.headers)
            self.headed = True
        self.link.send([Frame(frames.PIECE, self.frame.id, text, data, frames.MORE)])


def _answer_of(piece: Owned, request: Request) -> Answer:
    """The head of the answer that begins with this piece. Raises SlotError where it cannot be sent."""
    headers = dict(piece.headers)
    kind = headers.pop("content-type", "")
    return GivenAnswer(piece.status, kind, b"", {**headers, **sent_back(request.headers.get(REQUEST_ID, ""))})
