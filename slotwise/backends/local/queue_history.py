"""What a model's queue has just lived through: kept in memory, and written to a file where a worker has died.

Numbers of requests and of workers, sizes and times: nothing of a body, a header, a key, an address or a path.
`python -m tests.backends.simulation.recorded FILE` lets a history happen again.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.files.disk import written_whole

log = logging.getLogger("slotwise.host")

VERSION = 1
KEPT = 300  # events in memory, most of them a batch
FILES = 20  # beside each other; the oldest go

SETTINGS = (  # of a model that its history names
    "name", "version", "batch_size", "max_batch_delay_s", "response_timeout_s", "job_queue_size", "linger", "target_s",
)  # fmt: skip

Event = tuple[Any, ...]  # plain values, so that another thread may read them
Line = dict[str, Any]


class Known(NamedTuple):
    """What is kept of a request. Times are the event loop's."""

    id: int
    came_at: float
    bytes: int
    sender: str
    weight: int
    priority: int
    deadline: float
    repeatable: bool
    alone: bool


def known(one: WaitingRequest) -> Event:
    """The values of a Known; a plain tuple is made in a third of the time."""
    it = one.request
    return (one.id, one.came_at, one.size, it.sender, it.weight, it.priority, it.deadline, it.repeatable, it.alone)


def _all(requests: Iterable[WaitingRequest]) -> list[Event]:
    return [known(one) for one in requests]


class QueueHistory:
    """The last events of one queue. now: the event loop's time. admitted: how many requests have come so far.

    A batch is one event: when it is over. So that nothing is slow while nobody dies.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        self.count = self.workers = 0

    def _add(self, *event: Any) -> None:
        self.count += 1
        self.events.append(event)

    def joined(self, worker: BatchWorker, now: float, admitted: int) -> None:
        """A worker is ready; it gets a number."""
        self.workers += 1
        worker.number = self.workers
        self._add("joined", now, admitted, worker.number)

    def over(self, worker: BatchWorker, now: float, admitted: int, dead: bool) -> None:
        """A worker's batch is over. dead: its engine is."""
        missing = [one.id for one, _ in worker.held] if dead else None
        batch = [known(one) for one in worker.batch]
        self.count += 1
        self.events.append(("over", now, admitted, worker.number, worker.busy_since, worker.sent_after, batch, missing))

    def died(self, worker: BatchWorker, now: float, admitted: int) -> None:
        """A worker is gone, with the batch that it had."""
        lost = [*worker.in_hand, *(one.id for one, _ in worker.held)]
        self._add("died", now, admitted, worker.number, worker.busy_since, worker.sent_after, _all(worker.batch), lost)

    def happened(self, what: str, one: WaitingRequest, now: float) -> None:
        """To a request: its client has left, it is requeued, accused or convicted, or it has ended without an answer."""
        self._add(what, now, known(one))

    def kept(self, still_open: Iterable[WaitingRequest], workers: Iterable[BatchWorker]) -> KeptEvents:
        """All of it now."""
        busy = [(each.number, each.busy_since, each.sent_after, _all(each.batch)) for each in workers if each.batch]
        return KeptEvents(self.count - len(self.events), list(self.events), _all(still_open), busy)


class KeptEvents(NamedTuple):
    """What a queue knows of its past: first, the number of the first event; the requests that are open; who is busy."""

    first: int
    events: Sequence[Event]
    still_open: Sequence[Event]
    busy: Sequence[Event]


class WrittenHistory:
    """A history as lines: what holds for all of it, each request where it came, and what happened, in order.

    Times are seconds since it begins. What came before (a time below 0) was in the queue then, or in a worker's hands.
    """

    def __init__(self, kept: KeptEvents) -> None:
        self.events = list(enumerate(kept.events, kept.first))
        self.begin = kept.events[0][1] if kept.events else 0.0
        self.known: dict[int, Known] = {}
        self.sent: deque[Event] = deque()  # number of the event that was next, requests until then, worker, time, requests
        self._read(kept)
        self.coming = deque(sorted(self.known.values()))
        self.senders: dict[str, int] = {}
        self.written: list[Line] = []

    def _read(self, kept: KeptEvents) -> None:
        """Who is known, and which batches were sent."""
        requests, sent = list(kept.still_open), dict[Event, Event]()
        for event in kept.events:
            match event:
                case ("over" | "died", _, _, worker, since, (before, admitted), batch, *_):
                    requests += batch
                    if batch:
                        sent[worker, since] = (before, admitted, worker, since, batch)
                case (_, _, one):
                    requests.append(one)
        for worker, since, (before, admitted), batch in kept.busy:
            sent[worker, since] = (before, admitted, worker, since, batch)
        self.known = {one[0]: Known(*one) for one in requests}
        self.sent = deque(sorted(sent.values()))

    def lines(self, about: Mapping[str, Any]) -> list[Line]:
        """All of them. about: what holds for all of it."""
        self.written = [{"slotwise_history": VERSION, **about}]
        self._come(self.begin, 0)
        for number, event in self.events:
            while self.sent and self.sent[0][0] <= number:
                self._sent(*self.sent.popleft())
            self._happened(event)
        while self.sent:
            self._sent(*self.sent.popleft())
        self._come(float("inf"), 0)
        return self.written

    def _write(self, at: float, event: str, **more: Any) -> None:
        self.written.append({"at": round(at - self.begin, 6), "event": event, **more})

    def _come(self, before: float, admitted: int) -> None:
        """The requests that came before then, and as many as had come."""
        while self.coming and (self.coming[0].came_at < before or self.coming[0].id <= admitted):
            one = self.coming.popleft()
            about = one._asdict() | {"sender": self.senders.setdefault(one.sender, len(self.senders) + 1)}
            came_at, deadline = about.pop("came_at"), about.pop("deadline")
            self._write(came_at, "arrived", **about, left_s=round(deadline - came_at, 6))

    def _sent(self, before: int, admitted: int, worker: int, at: float, batch: Sequence[Event]) -> None:
        self._come(at, admitted)
        self._write(at, "sent", worker=worker, ids=_ids(batch))

    def _happened(self, event: Event) -> None:
        match event:
            case ("joined", now, admitted, worker):
                self._come(now, admitted)
                self._write(now, "joined", worker=worker)
            case ("over", now, admitted, worker, _, _, batch, missing):
                self._come(now, admitted)
                dead = {} if missing is None else {"dead": True, "missing": missing}
                self._write(now, "answered", worker=worker, ids=_ids(batch), **dead)
            case ("died", now, admitted, worker, _, _, _, lost):
                self._come(now, admitted)
                self._write(now, "died", worker=worker, ids=lost)
            case (what, now, one):
                self._come(now, one[0])
                self._write(now, what, id=one[0])


def _ids(batch: Sequence[Event]) -> list[int]:
    return [one[0] for one in batch]


def write(file: Path, about: Mapping[str, Any], kept: KeptEvents) -> None:
    """Write a history, and take away the oldest beside it. Raises nothing: a death is bad enough."""
    try:
        file.parent.mkdir(exist_ok=True)
        with written_whole(file) as partial:
            lines = WrittenHistory(kept).lines(about)
            partial.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "ascii")
        for old in sorted(file.parent.glob("*.jsonl"))[:-FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.error("the history of a worker's death cannot be written: %s", error)
