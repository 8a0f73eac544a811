"""What a model's queue knows of each request that waits, of each worker, and of bodies that are accused of its end."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from slotwise.backends.exchange import CLIENT_GONE, BackendAnswer, BackendRequest, RawHeaders, Refused, nobody

log = logging.getLogger("slotwise.host")

BODIES = 4096  # that are accused
BEHIND = 0.5  # so far below its priority is the level of one that is set aside

Key = tuple[str, str]  # of a sequence: whose it is, where keys are known; its id


class LyingWorker(Exception):
    """A worker said what it had no right to say: nothing that it says can be trusted any more."""


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits for its answer. about: what `about` made of it. deaths: of workers that had it in hand.

    size: of its body, which is let go once it is answered. taken: a worker has had it. calm_at: not before then it goes again,
    alone. held_by: the worker that streams its answer. sent: the pieces that came, which its client has. left: its client has
    gone. cancelled: the worker that has it was told. aside: it is too late for the target, and waits behind those that are not.
    """

    id: int
    request: BackendRequest
    about: bytes
    answer: asyncio.Future[BackendAnswer]
    came_at: float
    deaths: int = 0
    size: int = 0
    taken: bool = False
    calm_at: float = 0.0
    held_by: StreamWorker | None = None
    sent: list[bytes] = field(default_factory=list)
    left: bool = False
    cancelled: bool = False
    aside: bool = False

    @property
    def open(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.answer.done()

    @property
    def level(self) -> float:
        """Among whom it takes turns; a higher level goes first."""
        return self.request.priority - BEHIND * self.aside

    def refuse(self, status: int, message: str, retry_after_s: int = 0, kind: type[Refused] = Refused) -> None:
        """End it with an error."""
        if self.open:
            self.answer.set_exception(kind(status, message, retry_after_s))

    def close(self) -> None:
        """Nobody waits for it any more: a worker's late words find nobody, and nothing leads from its request to it."""
        self.answer.cancel()
        self.request.leave = nobody

    def leave(self) -> None:
        """Its client has gone: no worker need have it. One that has had it goes on: it may end that worker."""
        if not self.taken:
            self.refuse(CLIENT_GONE, "its client has gone")


@dataclass(eq=False)
class BatchWorker:
    """A worker as the queue knows it. send(batch) gives it a batch; end(why) ends it, and `ModelQueue.ended` is called then.
    cancel(id): nobody wants that answer: what has not begun of it is not run, or its slot is freed.

    in_hand: what has no answer yet, by id. batch: all that it was sent at once. retiring: it gets no other batch.
    number, sent_after: for the queue's history. over_at, found: when its last batch was over (of one that streams, its last
    request), and how many waited then. expects: so many does it wait for, until hold_until.
    """

    send: Callable[[Several[WaitingRequest]], None]
    end: Callable[[str], None]
    cancel: Callable[[int], None] = lambda request_id: None
    in_hand: dict[int, WaitingRequest] = field(default_factory=dict)
    batch: Several[WaitingRequest] = ()
    held: list[tuple[WaitingRequest, BackendAnswer]] = field(default_factory=list)  # until done: is its engine dead?
    suspects: bool = False
    retiring: bool = False
    number: int = 0
    sent_after: tuple[int, int] = (0, 0)
    joined_at: float = 0.0
    busy_since: float = 0.0
    over_at: float = 0.0
    found: int = 0
    expects: int = 0
    hold_until: float = 0.0
    heard_at: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it has a batch."""
        return bool(self.batch)


@dataclass(eq=False)
class Sequence:
    """One sequence. worker: that it stays in; None: it waits for one. begun: its first request was given to it.

    line: what waits. running: what its worker has. last: the one that ends it. over: nothing but what it has belongs to it any
    more, whatever becomes of the last one. began_at, used_at: by the event loop.
    """

    key: Key
    began_at: float
    used_at: float
    worker: BatchWorker | None = None
    begun: bool = False
    line: deque[WaitingRequest] = field(default_factory=deque)
    running: WaitingRequest | None = None
    last: WaitingRequest | None = None
    over: bool = False


@dataclass(eq=False)
class StreamWorker(BatchWorker):
    """A worker whose requests join and leave at any time.

    slots: how many streams it runs at once. trying: who is under suspicion and has not said anything new yet; nobody joins it.
    headers: of the answers that have begun, by id. whole: it may answer a request for pieces whole.
    """

    slots: int = 1
    whole: bool = False
    trying: WaitingRequest | None = None
    headers: dict[int, RawHeaders] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether it has any request."""
        return bool(self.in_hand)

    @property
    def room(self) -> int:
        """How many may join now: a few more than it has slots for, so that none is empty for a turn; of one nobody waits."""
        taken = self.retiring or self.trying is not None
        more = max(1, self.slots // 4) if self.slots > 1 else 0
        return 0 if taken else self.slots + more - len(self.in_hand)


class Accused:
    """Bodies whose request nobody waited for any more when a worker ended on it: the next one like it is under suspicion.

    Else a deadline just above what a body usually costs would keep what ends workers from being known. By their digests: how
    many workers ended, and until when all is to be calm; bounded, the oldest forgotten first.
    """

    def __init__(self) -> None:
        self._bodies: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def add(self, one: WaitingRequest) -> None:
        """Nobody waits for this one, and workers ended on it."""
        self._bodies[one.request.digest] = one.deaths, one.calm_at
        if len(self._bodies) > BODIES:
            self._bodies.popitem(last=False)

    def closed(self, one: WaitingRequest, workers: Iterable[BatchWorker]) -> None:
        """It ends without an answer. Where a worker has it the digest of its body is kept until that worker says more."""
        if any(one.id in worker.in_hand for worker in workers):
            _ = one.request.digest
        elif one.deaths:
            self.add(one)

    def meets(self, one: WaitingRequest) -> bool:
        """Whether one with such a body is accused: then this one goes alone, and answers for both."""
        found = self._bodies.pop(one.request.digest, None) if self._bodies else None
        if found is None:
            return False
        one.deaths, one.calm_at = found
        one.request.sent = "alone"
        return True


def say_lost(lost: Several[WaitingRequest]) -> None:
    """Log whose worker ended, where there is anybody."""
    if lost:
        names = ", ".join(one.request.identity for one in lost)
        log.warning("a worker of %s ended with these in hand: %s", lost[0].request.model, names)


def even_share(waiting: int, workers: Several[BatchWorker]) -> int:
    """How many of those that wait are a free worker's part, where each worker has as many in hand, and nobody waits then."""
    return max(1, -(-(waiting + sum(len(one.batch) for one in workers)) // len(workers)))
