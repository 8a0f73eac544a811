"""One model's requests: they wait here, go to workers in batches, and each gets its own answer or a reason.

A batch is formed when a worker is free. What a worker had in hand when it died goes again, each request alone; one on which a
worker ends then, as another one has before, is convicted. So a body ends two workers at most, however large the batches are. It
goes a moment later: where something kills several workers at once, nobody is convicted for it. Where nobody waits for it then,
the next one like it goes alone (Accused).
Senders take turns (waiting_line.py). Who cannot be answered in time, by what batches have cost so far, is refused at once.
No socket and no process is here: workers are asked and heard through `BatchWorker`, and all time is the event loop's. So the
simulation (tests/backends/simulation) runs this very code.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque
from collections.abc import Callable, Collection

from slotwise.backends.exchange import CLIENT_GONE, BackendAnswer, BackendRequest, Refused
from slotwise.backends.local.dispatcher import Dispatcher, Linger
from slotwise.backends.local.ledger import Ledger, Outcome
from slotwise.backends.local.queue_history import QueueHistory
from slotwise.backends.local.queue_members import Accused, BatchWorker, LyingWorker, StreamWorker, WaitingRequest, say_lost

LOOK_S = 0.05  # how often deadlines and silent workers are looked at
LATE_LOOK_S = 1.0  # after a look that is so late nobody is blamed: this process did not run, or the machine
CALM_S = 0.5  # after a worker's death, before what it had in hand goes again
SILENT_S = 15.0  # a worker beats every second
NOT_COMPUTED = 503  # what a worker answers for rows that a dead engine has not run


class ModelQueue:
    """The queue of one model, for one event loop.

    batch_size: the most requests of a batch. max_batch_delay_s: how long a batch that is not full may wait for more; whether it
    does, and which batches are formed for target_s, linger says (Dispatcher). response_timeout_s: how long a worker may take
    for a batch. job_queue_size: so many may wait. absent(): why there is no worker to wait for; "" where there is, or soon will
    be. about(request): what is sent of it besides its body; it may raise Refused. ended_at: when the last request had ended.
    """

    def __init__(
        self,
        batch_size: int,
        max_batch_delay_s: float = 0.0,
        response_timeout_s: float = 120.0,
        job_queue_size: int = 1000,
        linger: Linger = "free",
        absent: Callable[[], str] = lambda: "",
        about: Callable[[BackendRequest], bytes] = lambda request: b"",
        target_s: float = 0.0,
        name: str = "",
    ) -> None:
        self.response_timeout_s = response_timeout_s
        self.absent, self.about = absent, about
        self.loop = asyncio.get_running_loop()
        self.ledger, self.history, self.ended_at = Ledger(), QueueHistory(), self.loop.time()
        self.dispatcher = Dispatcher(batch_size, max_batch_delay_s, job_queue_size, linger, target_s, name)
        self.waiting = self.dispatcher.waiting
        self.suspects, self.accused = deque[WaitingRequest](), Accused()
        self.workers: list[BatchWorker] = []
        self._open: dict[int, WaitingRequest] = {}
        self._dispatching = self._suspects_went_last = False
        self._next_look: float | None = None
        self._next_dispatch = math.inf

    # What clients ask.

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        """A worker's answer to just this request. Raises Refused (500, 503, 504, or what `request.check` raises)."""
        if not self.workers and (why := self.absent()):
            raise Refused(503, why, retry_after_s=1)
        self._look_at_request(request)
        now = self.loop.time()
        self.dispatcher.refuse_if_late(request, now, self.workers)
        about = self.about(request)
        self.dispatcher.make_room(request, len(self.workers))
        one = WaitingRequest(self.ledger.admitted + 1, request, about, self.loop.create_future(), now, size=len(request.body))
        self.ledger.admit(one.id)
        self._open[one.id], request.leave = one, functools.partial(self._left, one)
        self._line_up(one)
        self._dispatch_soon()
        if self._next_look is None:
            self._look_later(now)
        try:
            answer = await one.answer
        except BaseException as error:
            self._close(one, "refused" if isinstance(error, Refused) and error.status != CLIENT_GONE else "gone")
            raise
        self._close(one, "answered")
        return answer

    def _look_at_request(self, request: BackendRequest) -> None:
        """Raise Refused where no worker here could answer it."""

    def _line_up(self, one: WaitingRequest) -> None:
        """It waits from now on."""
        (self.suspects if self.accused.meets(one) else self.waiting).append(one)

    @property
    def open_requests(self) -> Collection[WaitingRequest]:
        """Those that have not ended."""
        return self._open.values()

    def wait_s(self, count: int) -> float:
        """Seconds until so many that wait have been answered; 0 where nobody knows."""
        return self.dispatcher.wait_s(count, len(self.workers))

    def _left(self, one: WaitingRequest) -> None:
        """Its client has gone; or, once it has its answer, its connection."""
        if not one.open:
            return
        self.history.happened("left", one, self.loop.time())
        one.left = self.waiting.some_left = True
        one.leave()
        self._cancel(one)

    def _close(self, one: WaitingRequest, outcome: Outcome) -> None:
        one.close()
        del self._open[one.id]
        self.ended_at = self.loop.time()
        self.ledger.end(one.id, outcome)
        if outcome != "answered":
            self._cancel(one)
            self.accused.closed(one, self.workers)
            self.history.happened("cancelled" if outcome == "gone" else outcome, one, self.ended_at)

    def _cancel(self, one: WaitingRequest) -> None:
        """Tell the worker that has it, if any, that nobody wants its answer. Who had a worker die runs: it may end this one."""
        for worker in self.workers:
            if one.id in worker.in_hand and not one.deaths and not one.cancelled:
                one.cancelled = True
                worker.cancel(one.id)

    # What workers say.

    def joined(self, worker: BatchWorker) -> None:
        """A worker is ready for its first batch."""
        worker.joined_at = worker.heard_at = now = self.loop.time()
        self.history.joined(worker, now, self.ledger.admitted)
        self.workers.append(worker)
        self._dispatch_soon()

    def answered(self, worker: BatchWorker, request_id: int, answer: BackendAnswer) -> None:
        """A worker's answer to one request. Raises LyingWorker where it has no such request in hand."""
        if (one := worker.in_hand.pop(request_id, None)) is None:
            raise LyingWorker(f"an answer to request {request_id}, which it does not have")
        self._dispatch_soon()  # ahead of these answers: where the batch ends in this turn, its worker has the next one sooner
        if answer.status == NOT_COMPUTED:
            worker.held.append((one, answer))
        elif one.left and one.cancelled:
            one.refuse(CLIENT_GONE, "its client has gone")
        elif one.open:
            one.answer.set_result(answer)

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        """A worker's batch is over. dead: its engine is, and it ends now. Raises LyingWorker where answers are missing."""
        if not worker.busy or worker.in_hand:
            raise LyingWorker(f"a batch that is over, with {len(worker.in_hand)} requests unanswered")
        now = self.loop.time()
        self.history.over(worker, now, self.ledger.admitted, dead)
        if dead:
            worker.retiring = True
            return  # what it has not computed goes again once it has ended
        for one, answer in worker.held:
            if one.open:
                one.answer.set_result(answer)
        self.dispatcher.over(worker, now)
        worker.batch, worker.suspects, worker.held = (), False, []
        if self.suspects or len(self.waiting):
            self._dispatch_soon()

    def ended(self, worker: BatchWorker) -> None:
        """A worker is gone, whatever it was doing: nobody loses an answer to it but the one that ends workers alone."""
        self.workers.remove(worker)
        self.history.died(worker, self.loop.time(), self.ledger.admitted)
        lost = [*worker.in_hand.values(), *(one for one, _ in worker.held)]
        alone = len(worker.batch) == 1
        say_lost(lost)
        for one in lost:
            one.deaths, one.cancelled = one.deaths + 1, False
            self._suspect(one, convicted=alone and one.deaths > 1)
        worker.in_hand, worker.held, worker.batch = {}, [], ()
        self._dispatch_soon()

    def _suspect(self, one: WaitingRequest, *, convicted: bool) -> None:
        one.calm_at = self.loop.time() + CALM_S
        one.request.note("its worker ended on it, alone" if convicted else "its worker ended")
        self.history.happened("convicted" if convicted else "requeued" if one.open else "accused", one, self.loop.time())
        if convicted:
            one.request.convict()
            one.refuse(500, "the worker ended on this request, and another one when it went alone")
        elif not one.open:
            self.accused.add(one)
        elif not one.request.repeatable:
            one.refuse(500, "the worker ended while it had this request, which must not be sent twice")
        else:
            one.request.sent = "alone"
            self.suspects.append(one)

    # Batches.

    def _dispatch_soon(self) -> None:
        """Send batches once this turn of the loop is over: what came in it goes together."""
        if not self._dispatching:
            self._dispatching = True
            self.loop.call_soon(self._dispatch)

    def _dispatch_at(self, when: float) -> None:
        """Send batches then, too."""
        if when < self._next_dispatch:
            self._next_dispatch = when
            self.loop.call_at(when, self._dispatch_then)

    def _dispatch_then(self) -> None:
        self._next_dispatch = math.inf
        self._dispatch_soon()

    def _dispatch(self) -> None:
        self._dispatching = False
        now = self.loop.time()
        for worker in self.workers:
            if worker.batch or worker.retiring or isinstance(worker, StreamWorker):
                continue
            if not (batch := self._next_batch(worker, now)):
                continue
            worker.in_hand = {one.id: one for one in batch}
            for one in batch:
                one.taken, one.request.taken_at = True, now
            worker.batch, worker.busy_since = batch, now
            worker.sent_after = (self.history.count, self.ledger.admitted)
            worker.send(batch)

    def _next_batch(self, worker: BatchWorker, now: float) -> list[WaitingRequest]:
        """What goes to a free worker now: in turn, those that were there when a worker died, and everybody else."""
        if not self.suspects:
            return self._first_waiting(worker, now)
        if self._suspects_went_last and self.waiting:
            return self._first_waiting(worker, now) or self._first_suspects(worker)
        return self._first_suspects(worker) or self._first_waiting(worker, now)

    def _first_suspects(self, worker: BatchWorker) -> list[WaitingRequest]:
        """These go alone, and at one worker at a time: the others are for everybody else."""
        if not self.suspects or any(other.suspects for other in self.workers):
            return []
        while self.suspects:
            if self.suspects[0].open and self.suspects[0].calm_at > self.loop.time():
                self._dispatch_at(self.suspects[0].calm_at)
                return []
            one = self.suspects.popleft()
            if self._may_go(one):
                worker.suspects = self._suspects_went_last = True
                return [one]
        return []

    def _may_go(self, one: WaitingRequest) -> bool:
        """Whether it is to be sent again: its body may have been convicted meanwhile."""
        try:
            one.request.check()
        except Refused as refused:
            if one.open:
                one.answer.set_exception(refused)
        return one.open

    def _first_waiting(self, worker: BatchWorker, now: float) -> list[WaitingRequest]:
        batch, until = self.dispatcher.form(worker, now, self.workers)
        if until < math.inf:
            self._dispatch_at(until)
        self._suspects_went_last &= not batch
        return batch

    # Time.

    def _look_later(self, now: float) -> None:
        self._next_look = now + LOOK_S
        self.loop.call_at(self._next_look, self._look)

    def _look(self) -> None:
        """Refuse those whose deadline has passed, and end workers that take too long or say nothing; while anybody waits."""
        now = self.loop.time()
        late_s = now - (self._next_look or now)
        self._next_look = None
        for one in self._open.values():
            if one.request.deadline <= now:
                one.refuse(504, "the deadline passed before a worker had answered")
        if any(not one.open for one in self.waiting):
            self.waiting.drop_closed()
        if late_s < LATE_LOOK_S:
            for worker in list(self.workers):
                self._look_at(worker, now)
        if self._open or any(worker.busy for worker in self.workers):
            self._look_later(now)

    def _look_at(self, worker: BatchWorker, now: float) -> None:
        if worker.busy and now - worker.busy_since > self.response_timeout_s:
            worker.end(f"it did not answer within {self.response_timeout_s:g} s")
        elif worker.busy and now - worker.heard_at > SILENT_S:
            worker.end(f"it has said nothing for {SILENT_S:g} s")
