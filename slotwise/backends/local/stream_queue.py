"""A model's queue that also has workers whose answers are streams: requests join one that has a free slot at any time.

A worker's death ends no stream: in another worker it goes on after the pieces that came, by the same seed. Whoever was in hand
then is under suspicion. They join again one at a time, each where a slot is free, and nobody joins them until they have said
something new, or their worker has taken turns for TRIED_S: a whole answer says nothing until its end. A worker that ends
meanwhile accuses the one that was being tried; any that ends, whoever had one end before. Who is accused goes alone until its
end, and convicted where that ends the worker, too. So a body ends three workers at most, and two where it was alone at first.
A client that has gone frees its slot. Its request stays in hand until the worker says so: else whoever sends what ends workers
would hang up at once, and never be known.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.backends.exchange import CLIENT_GONE, BackendAnswer, BackendRequest, RawHeaders, Refused
from slotwise.backends.local.ledger import Outcome
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_members import BatchWorker, LyingWorker, StreamWorker, WaitingRequest, say_lost

TRIED_S, TURN_S = 5.0, 2.0  # so long is one tried that says nothing, in a worker whose last turn is not longer ago
NO_STREAM = "this model gives no text/event-stream: its answer comes whole, ask for application/json or */*"


class StreamQueue(ModelQueue):
    """See ModelQueue. `request.pieces` takes the answer of a worker that streams, as it comes."""

    emptying: StreamWorker | None = None  # nobody joins it: who is accused has to be alone there
    streams_wait = False  # perhaps for a worker that knows none

    def not_run(self, request: BackendRequest) -> None:
        """A request that was for this queue ended before it came here."""

    def _look_at_request(self, request: BackendRequest) -> None:
        """Raise Refused (406) where only pieces would do, and there are none."""
        if request.pieces is None:
            return
        if self.workers and not any(isinstance(worker, StreamWorker) for worker in self.workers):
            _whole_will_do(request)
        self.streams_wait |= request.pieces is not None

    def _close(self, one: WaitingRequest, outcome: Outcome) -> None:
        super()._close(one, outcome)
        _cancel_stream(one)

    def _cancel(self, one: WaitingRequest) -> None:
        if one.held_by is None:
            super()._cancel(one)
        elif one.held_by.trying is not one or not one.open:
            _cancel_stream(one)

    # What workers say.

    def piece(self, worker: StreamWorker, request_id: int, headers: RawHeaders | None, data: bytes) -> None:
        """The next piece of an answer. headers: of the first one. Raises LyingWorker where it cannot be one."""
        one, sink = worker.in_hand.get(request_id), None
        if one is None or (sink := one.request.pieces) is None:
            raise LyingWorker(f"a piece of an answer to request {request_id}, which it does not have, or not as a stream")
        if headers is not None:
            if request_id in worker.headers:
                raise LyingWorker(f"a second beginning of the answer to request {request_id}")
            worker.headers[request_id] = headers
        if request_id not in worker.headers or not data or b"\n" in data or b"\r" in data:
            raise LyingWorker(f"no piece of an answer to request {request_id}, but {data[:80]!r}")
        worker.busy_since = self.loop.time()
        if not one.open:
            return
        one.sent.append(data)
        if worker.trying is one and one.deaths < 2:
            self._cleared(worker)
        if one.left:
            return
        try:
            sink.take(worker.headers[request_id], data)
        except Exception as error:  # whatever it is, it is this request's: the worker has others
            if one.open:
                one.answer.set_exception(error)

    def over(self, worker: StreamWorker, request_id: int) -> None:
        """A stream is whole, or was cancelled. Raises LyingWorker where it cannot be that."""
        one = worker.in_hand.get(request_id)
        if one is None or (one.request.pieces is None and not one.cancelled):
            raise LyingWorker(f"the end of request {request_id}, which it does not have, or not as a stream")
        headers = worker.headers.get(request_id, [])
        self._let_go(worker, one)
        if one.left:
            one.refuse(CLIENT_GONE, "its client has gone")
        elif one.open:
            one.answer.set_result(BackendAnswer(200, headers, b""))

    def answered(self, worker: BatchWorker, request_id: int, answer: BackendAnswer) -> None:
        """As ModelQueue's; of a stream it is the error that ends it, or all of it where the worker may say that."""
        if not isinstance(worker, StreamWorker):
            super().answered(worker, request_id, answer)
            return
        one = worker.in_hand.get(request_id)
        whole = worker.whole and request_id not in worker.headers and one is not None and not one.sent
        if one is None or (one.request.pieces is not None and answer.status < 400 and not whole):
            raise LyingWorker(f"an answer to request {request_id}, which it does not have, or has to stream")
        self._let_go(worker, one)
        if one.open:
            one.answer.set_result(answer)

    def _let_go(self, worker: StreamWorker, one: WaitingRequest) -> None:
        worker.in_hand.pop(one.id)
        worker.headers.pop(one.id, None)
        one.sent.clear()  # an error and its frames hold this request until Python looks for garbage
        one.held_by, worker.busy_since = None, self.loop.time()
        worker.over_at = worker.busy_since
        if worker.trying is one:
            self._cleared(worker)
        self._dispatch_soon()

    def _cleared(self, worker: StreamWorker) -> None:
        """Others may join again."""
        one, worker.trying = worker.trying, None
        if one is not None and one.left:
            _cancel_stream(one)
        self._dispatch_soon()

    def done(self, worker: BatchWorker, *, dead: bool) -> None:
        """As ModelQueue's; a worker that streams says it only where its engine is dead."""
        if isinstance(worker, StreamWorker):
            worker.retiring = True
        else:
            super().done(worker, dead=dead)

    def ended(self, worker: BatchWorker) -> None:
        """As ModelQueue's; no stream is lost but the one that ends workers alone."""
        if not isinstance(worker, StreamWorker):
            super().ended(worker)
            return
        self.workers.remove(worker)
        held = list(worker.in_hand.values())
        say_lost(held)
        for one in held:
            one.held_by, one.cancelled = None, False
            blamed = worker.trying in (None, one) or one.deaths > 0
            one.deaths = one.deaths + 1 if blamed else 1
            self._suspect(one, convicted=blamed and len(held) == 1 and one.deaths > 1)
        worker.in_hand, worker.headers, worker.trying = {}, {}, None
        self._dispatch_soon()

    # Who joins.

    def _dispatch(self) -> None:
        streaming = [worker for worker in self.workers if isinstance(worker, StreamWorker)]
        if self.streams_wait and self.workers and not streaming:
            self.streams_wait = False
            for one in self.waiting:
                _refuse_stream(one)
        super()._dispatch()
        if not streaming:
            return
        if workers := [worker for worker in streaming if not worker.retiring]:
            self._try_suspects(workers)
            self._join(workers)

    def _join(self, workers: Sequence[StreamWorker]) -> None:
        """Give those that wait to the workers with the fewest requests, their senders in turn."""
        joining: dict[StreamWorker, list[WaitingRequest]] = {}
        while one := self.waiting.first():
            free = [worker for worker in workers if worker.room > 0 and worker is not self.emptying]
            if not free:
                break
            worker = min(free, key=lambda worker: len(worker.in_hand) / worker.slots)
            self._hand(worker, self.waiting.take(one))
            joining.setdefault(worker, []).append(one)
        for worker, those in joining.items():
            worker.send(those)

    def _hand(self, worker: StreamWorker, one: WaitingRequest) -> None:
        now = self.loop.time()
        if not worker.in_hand:
            worker.busy_since = now
        worker.in_hand[one.id] = one
        one.held_by, one.taken, one.request.taken_at = worker, True, now

    def _try_suspects(self, workers: Sequence[StreamWorker]) -> None:
        """Let the next one under suspicion join, alone where it is accused; where none is being tried."""
        if self.emptying not in workers:
            self.emptying = None
        for worker in workers:
            self._look_at_tried(worker)
        if any(worker.trying for worker in workers):
            return
        while self.suspects:
            one = self.suspects[0]
            if one.open and one.calm_at > self.loop.time():
                self._dispatch_at(one.calm_at)
                return
            if not self._may_go(one):
                self.suspects.popleft()
                continue
            worker = min(workers, key=lambda worker: len(worker.in_hand))
            beside = 0 if one.deaths > 1 else worker.slots - 1  # it has a slot at once: who waits for one is not tried
            if len(worker.in_hand) > beside:
                self.emptying = self.emptying or worker
                return
            self.suspects.popleft()
            self.emptying, worker.trying = None, one
            self._hand(worker, one)
            worker.send([one])
            return
        self.emptying = None

    def _look_at_tried(self, worker: StreamWorker) -> None:
        """Let others join one that was tried for long enough, in turns that did not end the worker."""
        one, now = worker.trying, self.loop.time()
        if one is None or one.deaths > 1:
            return
        if now < one.request.taken_at + TRIED_S:
            self._dispatch_at(one.request.taken_at + TRIED_S)
        elif now - worker.busy_since > TURN_S:
            self._dispatch_at(now + TURN_S)
        else:
            self._cleared(worker)


def _cancel_stream(one: WaitingRequest) -> None:
    """Tell the worker that has it, if any, that nobody wants its answer."""
    if one.held_by is not None and not one.cancelled:
        one.cancelled = True
        one.held_by.cancel(one.id)


def _whole_will_do(request: BackendRequest) -> None:
    """The answer comes whole. Raises Refused (406) where that will not do."""
    if request.pieces is not None:
        if request.pieces.needed:
            raise Refused(406, NO_STREAM)
        request.pieces = None


def _refuse_stream(one: WaitingRequest) -> None:
    try:
        _whole_will_do(one.request)
    except Refused as refused:
        if one.open:
            one.answer.set_exception(refused)
