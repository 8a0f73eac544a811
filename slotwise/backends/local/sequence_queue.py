"""A queue whose requests belong to sequences: each stays in one worker, and its requests go in order, one at a time.

What came before in a sequence is known to its worker alone. So where the worker ends, its sequences do, and nobody else answers
for them: what waits of them is refused, and so is what comes later, until a request begins the sequence anew. A worker has at
most as many sequences as a batch has requests; more of them wait for one that ends.
A request that was refused before its turn, wherever that was, or whose client has gone by then, is not run. Where it was to
begin the sequence, also anew, that is over: what comes after it was not meant for what was before. So it is where the handler
fails on it, or never gets it: nobody knows what is left of what was before.
What a worker had when it ended is not sent again; the next one like it goes alone, and is convicted where its worker ends, too.
One that goes on may end a worker by what was before: it is like those of the same sender only, and only that one is told.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.ledger import Outcome
from slotwise.backends.local.queue_members import BatchWorker, Key, Sequence, WaitingRequest
from slotwise.backends.local.stream_queue import StreamQueue

BUSY = (  # TorchServe's words
    'Model "{}" has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence '
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
OVER = "this sequence is not known here ({}): begin it anew with {}: true"
NEVER_BEGUN = "it has not begun, or ended long ago"
LONGEST_ID = 256
REMEMBERED = 1000  # sequences that are over, for their next request's words


@dataclass(frozen=True)
class SequenceLimits:
    """most: sequences at once. most_waiting: requests of one that may wait. idle_s, total_s: when it is over; 0: never.

    headers: the names of those that carry its id, that begin it and that end it.
    """

    most: int = 1
    most_waiting: int = 1
    idle_s: float = 0.0
    total_s: float = 0.0
    headers: tuple[str, str, str] = ("ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end")


class SequenceQueue(StreamQueue):
    """See ModelQueue. batch_size: so many sequences has a worker at most."""

    def __init__(self, *about: Any, limits: SequenceLimits, **named: Any) -> None:
        super().__init__(*about, **named)
        self.limits = limits
        self.sequences: dict[Key, Sequence] = {}
        self.of: dict[int, Sequence] = {}  # by a request's id, until it is answered
        self.past: OrderedDict[Key, str] = OrderedDict()  # why they are over
        self.expire_at = math.inf  # nothing is over before
        self.described = set[BatchWorker]()  # their last batches were of no sequence

    # What clients ask.

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """As ModelQueue's. An id that was made here goes back with the answer. Raises Refused (400, 410, 503), too."""
        name = self.limits.headers[0]
        brought = request.headers.get(name, "")
        admitted, request.queued = self.ledger.admitted, True
        try:
            answer = await super().answer(request)
        except Refused:
            if self.ledger.admitted == admitted:
                request.headers[name] = brought
                self.not_run(request)
            raise
        id_here, raw = request.headers.get(name, ""), name.lower().encode("latin-1", "replace")
        if id_here == brought:
            return answer
        client_id = brought or id_here.removeprefix(_prefix(_owner(request)))
        headers = [one for one in answer.headers if one[0].lower() != raw]
        if not brought or len(headers) < len(answer.headers):
            headers.append((raw, client_id.encode("latin-1", "replace")))
        return replace(answer, headers=headers)

    def not_run(self, request: BackendRequest) -> None:
        """See StreamQueue. Its headers are its client's."""
        name, begins, _ = self.limits.headers
        if not _says(request, begins):
            return
        sequence = self.sequences.get((_owner(request), request.headers.get(name, "")))
        if sequence is not None and sequence.last is not None:  # what it has came before, and nothing more comes to it
            sequence.over = True
        else:
            self._not_begun(sequence)

    def _look_at_request(self, request: BackendRequest) -> None:
        """Raise Refused where its sequence is over, or cannot take it. Its headers are from now on its handler's."""
        super()._look_at_request(request)
        if request.describes:
            return
        self._expire(self.loop.time())
        name, begins, _ = self.limits.headers
        if not (given := request.headers.get(name, "")):
            given = f"ts-seq-{uuid.uuid4()}"
            request.headers[begins] = "true"
        if len(given) > LONGEST_ID:
            raise Refused(400, f"the {name} has more than {LONGEST_ID} characters")
        key = (_owner(request), given)
        sequence = self.sequences.get(key)
        if sequence is None and not _says(request, begins):
            why = self.past.get(key, NEVER_BEGUN)
            raise Refused(410, OVER.format(why, begins), logged=f"its sequence is over: {why}")
        if sequence is not None and sequence.last is not None:
            raise Refused(410, OVER.format("it is being ended", begins), logged="its sequence is being ended")
        full = len(self.sequences) >= self.limits.most if sequence is None else len(sequence.line) >= self.limits.most_waiting
        if full:
            raise Refused(503, BUSY.format(request.model))
        request.headers[name] = _prefix(key[0]) + given
        request.repeatable = False
        if not _says(request, begins):
            request.state_of = f"of {request.sender}"

    def _line_up(self, one: WaitingRequest) -> None:
        if one.request.describes:
            super()._line_up(one)
            return
        name, _, ends = self.limits.headers
        owner = _owner(one.request)
        key = (owner, one.request.headers[name].removeprefix(_prefix(owner)))
        if (sequence := self.sequences.get(key)) is None:
            sequence = self.sequences[key] = Sequence(key, one.came_at, one.came_at)
            self.past.pop(key, None)
            self._expires(sequence)
        self.of[one.id] = sequence
        self.accused.meets(one)
        sequence.line.append(one)
        if _says(one.request, ends):
            sequence.last = one

    def _close(self, one: WaitingRequest, outcome: Outcome) -> None:
        super()._close(one, outcome)
        sequence = self.of.get(one.id)
        if sequence is None or sequence.running is one:  # what a worker has is over when it says so
            return
        if one in sequence.line:
            sequence.line.remove(one)
            self._not_run(sequence, one)

    # What workers say.

    def answered(self, worker: BatchWorker, request_id: int, answer: BackendAnswer) -> None:
        """As ModelQueue's; the next one of its sequence may go."""
        one = worker.in_hand.get(request_id)
        super().answered(worker, request_id, answer)
        sequence = self.of.pop(request_id, None)
        if one is None or sequence is None:
            return
        sequence.running, sequence.used_at = None, self.loop.time()
        if sequence.last is one:
            self._end(sequence, "it was ended")
        elif answer.status >= 400 and _says(one.request, self.limits.headers[1]):
            self._end(sequence, "the request that was to begin it failed")

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        """As ModelQueue's."""
        super().done(worker, dead=dead)
        self._dispatch_soon()

    def ended(self, worker: BatchWorker) -> None:
        """As ModelQueue's; its sequences are over, and nobody else answers for them."""
        for one in worker.in_hand.values():
            self.of.pop(one.id, None)
        super().ended(worker)
        self.described.discard(worker)
        for sequence in [one for one in self.sequences.values() if one.worker is worker]:
            if sequence.begun:
                self._end(sequence, "its worker ended")
            else:
                sequence.worker = None

    # Which sequences there are.

    def _not_run(self, sequence: Sequence, one: WaitingRequest) -> None:
        """This one of its line was refused before its turn, or its client has gone."""
        self.of.pop(one.id, None)
        ended = sequence.over and sequence.last is one
        sequence.last = None if sequence.last is one else sequence.last
        if not sequence.begun or ended or _says(one.request, self.limits.headers[1]):
            self._not_begun(sequence)

    def _not_begun(self, sequence: Sequence | None) -> None:
        """The request that was to begin it was not run."""
        if sequence is not None:
            self._end(sequence, "the request that was to begin it was not run here")

    def _end(self, sequence: Sequence, why: str) -> None:
        """It is over; what waits of it is refused."""
        if self.sequences.get(sequence.key) is not sequence:
            return
        del self.sequences[sequence.key]
        self.past[sequence.key] = why
        if len(self.past) > REMEMBERED:
            self.past.popitem(last=False)
        for one in sequence.line:
            self.of.pop(one.id, None)
            one.refuse(410, OVER.format(why, self.limits.headers[1]))
        sequence.line.clear()
        self._dispatch_soon()  # another one may have its place

    def _expires(self, sequence: Sequence) -> float:
        """When it is over, as it is now; what it runs, or has in line, keeps it from being idle."""
        idle_at = sequence.used_at + (self.limits.idle_s or math.inf)
        at = min(idle_at, sequence.began_at + (self.limits.total_s or math.inf))
        self.expire_at = min(self.expire_at, at)
        return at

    def _expire(self, now: float) -> None:
        if now < self.expire_at:
            return
        self.expire_at = math.inf
        for sequence in list(self.sequences.values()):
            too_old = self.limits.total_s and now >= sequence.began_at + self.limits.total_s
            if self._expires(sequence) > now or sequence.running is not None or (sequence.line and not too_old):
                continue
            self._end(sequence, f"it took more than {self.limits.total_s:g} s" if too_old else "nobody asked for too long")
        self.expire_at = min(map(self._expires, self.sequences.values()), default=math.inf)

    # Batches.

    def _dispatch(self) -> None:
        self._expire(self.loop.time())
        self._place()
        super()._dispatch()

    def _place(self) -> None:
        """Give sequences that wait to the workers that have the fewest."""
        waiting = [one for one in self.sequences.values() if one.worker is None]
        if not waiting:
            return
        taken = {worker: 0 for worker in self.workers if not worker.retiring}
        for one in self.sequences.values():
            if one.worker in taken:
                taken[one.worker] += 1
        for sequence in waiting:
            worker = min(taken, key=taken.__getitem__, default=None)
            if worker is None or taken[worker] >= self.dispatcher.batch_size:
                self._dispatch_at(max(self.expire_at, self.loop.time() + 0.01))
                return
            sequence.worker = worker
            taken[worker] += 1

    def _next_batch(self, worker: BatchWorker, now: float) -> list[WaitingRequest]:
        """In turn, what belongs to no sequence, and one request of each of its sequences."""
        was_described = worker in self.described
        self.described.discard(worker)
        if was_described and (batch := self._of_sequences(worker)):
            return batch
        if (self.waiting or self.suspects) and (batch := super()._next_batch(worker, now)):
            self.described.add(worker)
            return batch
        return self._of_sequences(worker)

    def _of_sequences(self, worker: BatchWorker) -> list[WaitingRequest]:
        mine = [one for one in self.sequences.values() if one.worker is worker and one.running is None and one.line]
        batch: list[WaitingRequest] = []
        for sequence in sorted(mine, key=lambda one: one.used_at):
            while sequence.line and sequence.running is None:
                if self._has_to_wait(sequence.line[0], batch):
                    break
                one = sequence.line.popleft()
                if self._may_go(one):
                    sequence.running, sequence.begun = one, True
                    batch.append(one)
                else:  # it has an error that nobody has been told yet
                    self._not_run(sequence, one)
        return batch

    def _has_to_wait(self, one: WaitingRequest, batch: list[WaitingRequest]) -> bool:
        """Whether it cannot join these: it is accused, or one of them is."""
        if one.deaths and one.open and one.calm_at > self.loop.time():
            self._dispatch_at(one.calm_at)
            return True
        return any(other.deaths for other in (one, *batch)) and bool(batch)


def _owner(request: BackendRequest) -> str:
    """Whose sequences they are: of a key, where there are any; an address may change from one request to the next."""
    return request.sender if request.sender.startswith("key ") else ""


def _prefix(owner: str) -> str:
    """What an id begins with for the handler: nobody can name what is somebody else's."""
    return f"{hashlib.sha256(owner.encode()).hexdigest()[:16]}-" if owner else ""


def _says(request: BackendRequest, header: str) -> bool:
    return request.headers.get(header, "").strip().lower() == "true"
