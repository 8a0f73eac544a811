"""Who takes part in a history of streams: requests, who reads their pieces, and workers that die, hang, fall silent or lie."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slotwise.backends.exchange import BackendAnswer, BackendRequest, RawHeaders, Refused
from slotwise.backends.local.queue_members import LyingWorker, StreamWorker, WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue

LIES = ("of nobody", "after the end", "a line break", "begins twice", "whole", "no beginning", "an end of nobody", "over")


@dataclass
class Reader:
    """Takes pieces; refuses at one of them, where it is to."""

    refuses_at: int = -1
    needed: bool = True
    got: list[bytes] = field(default_factory=list)

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        if len(self.got) == self.refuses_at:
            raise Refused(429, "no memory")
        self.got.append(piece)


@dataclass
class StreamingRequest(BackendRequest):
    """A request of a history. kind: what its worker does at piece `at` of `length`."""

    kind: str = "good"
    length: int = 5
    at: int = 0
    reader: Reader = field(default_factory=Reader)
    ended_workers: int = 0
    lost: int = 0
    company: int = 0  # that were in hand when it was lost last, itself among them
    convicted: int = 0

    def convict(self) -> None:
        self.convicted += 1

    @property
    def own(self) -> list[bytes]:
        """The pieces that it would have alone."""
        return [self.body + b"/%d" % i for i in range(self.length)]

    @property
    def whole(self) -> bytes:
        return b"".join(self.own)


class StreamedHistory(Protocol):
    """What a worker knows of its history. members: the workers, in their order."""

    random: random.Random
    loop: asyncio.AbstractEventLoop
    queue: StreamQueue
    slots: int
    deaths: float
    stops: float
    problems: list[str]
    members: dict[StreamingWorker, None]

    def check_joining(self, worker: StreamingWorker, one: WaitingRequest) -> None:
        """What must hold of every request that a worker gets."""

    def start_worker(self) -> None:
        """A new one is ready."""


class StreamingWorker:
    """A worker as the queue sees one. It gives one piece of each stream in a turn; what else it does is random."""

    def __init__(self, history: StreamedHistory, lie: str) -> None:
        self.history, self.lie, self.loop = history, lie, history.loop
        self.seen = StreamWorker(self.send, self.end, slots=history.slots, cancel=self.cancel)
        self.held: dict[int, tuple[WaitingRequest, int]] = {}
        self.alive, self.stopped, self.hangs, self.turning = True, False, False, False
        self.hung: StreamingRequest | None = None
        self.for_nobody: Counter[int] = Counter()  # turns of those that nobody waits for
        self.pause_s = history.random.choice((0.001, 0.01, 0.2))
        self.beat()

    def beat(self) -> None:
        if self.alive and not self.stopped:
            self.seen.heard_at = self.loop.time()
            self.loop.call_later(1.0, self.beat)

    def send(self, joining: Sequence[WaitingRequest]) -> None:
        for one in joining:
            self.history.check_joining(self, one)
            self.held[one.id] = (one, len(one.sent))
        if not self.turning:
            self.turning = True
            self.loop.call_later(self.pause_s, self.turn)

    def cancel(self, request_id: int) -> None:
        if self.alive:
            self.loop.call_later(self.pause_s * self.history.random.random(), self.cancelled, request_id)

    def cancelled(self, request_id: int) -> None:
        if self.alive and not self.stopped and not self.hangs and self.held.pop(request_id, None):
            self.heard(lambda: self.history.queue.over(self.seen, request_id))

    def turn(self) -> None:
        self.turning = False
        if not self.alive or self.stopped or self.hangs:
            return
        for one, at in list(self.held.values())[: self.history.slots]:
            if self.alive and not self.hangs:
                self.advance(one, at)
        chance = self.history.random.random()
        if chance < self.history.deaths:
            self.die()
        elif chance < self.history.deaths + self.history.stops:
            self.stopped = True
        if self.held:
            self.turning = True
            self.loop.call_later(self.pause_s, self.turn)

    def advance(self, one: WaitingRequest, at: int) -> None:
        request = one.request
        assert isinstance(request, StreamingRequest)
        self.for_nobody[one.id] += not one.open
        if self.for_nobody[one.id] > 2:
            self.history.problems.append(f"{request.identity} is not cancelled")
        if at == request.at and request.kind in ("kills", "hangs", "dead"):
            if request.kind == "hangs":
                self.hangs, self.hung = True, request
            if request.kind == "dead":
                self.heard(lambda: self.history.queue.done(self.seen, dead=True))
            if not self.hangs:
                request.ended_workers += 1
                self.die()
            return
        if at == request.at and request.kind == "fails":
            self.answer(one, 400, b"on purpose")
        elif at == request.length:
            if request.pieces is None:
                self.answer(one, 200, request.whole)
            else:
                del self.held[one.id]
                self.heard(lambda: self.history.queue.over(self.seen, one.id))
        else:
            self.held[one.id] = (one, at + 1)
            if request.pieces is not None:
                first = at == len(one.sent) and one.id not in self.seen.headers
                self.heard(lambda: self.history.queue.piece(self.seen, one.id, [] if first else None, request.own[at]))
        if self.lie and self.alive and self.history.random.random() < 0.2:
            self.tell_lie(one)

    def answer(self, one: WaitingRequest, status: int, body: bytes) -> None:
        del self.held[one.id]
        self.heard(lambda: self.history.queue.answered(self.seen, one.id, BackendAnswer(status, [], body)))

    def tell_lie(self, one: WaitingRequest) -> None:
        queue, seen, streams = self.history.queue, self.seen, one.request.pieces is not None
        told = self.history.random.choice(LIES) if self.lie == "any" else self.lie
        begun = one.id in seen.headers
        try:
            if told == "of nobody":
                queue.piece(seen, one.id + 1000, [], b"{}")
            elif told == "after the end" and one.id not in self.held:
                queue.piece(seen, one.id, None, b"{}")
            elif told == "a line break" and streams:
                queue.piece(seen, one.id, None if begun else [], b"{\n}")
            elif told == "begins twice" and begun:
                queue.piece(seen, one.id, [], b"{}")
            elif told == "whole" and streams and one.id in self.held:
                queue.answered(seen, one.id, BackendAnswer(200, [], b"of nobody"))
            elif told == "no beginning" and streams and not begun:
                queue.piece(seen, one.id, None, b"{}")
            elif told == "an end of nobody":
                queue.over(seen, one.id + 1000)
            elif told == "over" and not streams and not one.cancelled and one.id in self.held:
                queue.over(seen, one.id)
            else:
                return
            self.history.problems.append(f"that a worker lied ({told}) is not seen")
        except LyingWorker:
            self.end("it lied")

    def heard(self, say: object) -> None:
        """Say something, which the queue must believe."""
        if not self.alive:
            return
        try:
            say()  # type: ignore[operator]
        except LyingWorker as error:
            self.history.problems.append(f"an honest worker is not believed: {error}")

    def end(self, why: str) -> None:
        if self.alive:
            self.alive = False
            if self.hung is not None:
                self.hung.ended_workers += 1
            self.loop.call_later(0.01, self.gone)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.gone()

    def gone(self) -> None:
        for one in self.seen.in_hand.values():
            one.request.lost += 1  # type: ignore[attr-defined]
            one.request.company = len(self.seen.in_hand)  # type: ignore[attr-defined]
        self.history.members.pop(self)
        self.history.queue.ended(self.seen)
        self.loop.call_later(self.history.random.choice((0.1, 1.0, 5.0)), self.history.start_worker)
