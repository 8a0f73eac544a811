"""Our own host's dispatcher in virtual time: which batches would it form under a load, and how many answers come in time?

It is the very code that serves (slotwise.backends.local.dispatcher, slotwise.host.workers_by_load). What a batch takes is a
line and noise; requests come from clients that wait for their answers, at a rate, or as a trace says.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from slotwise.backends.exchange import BackendRequest, Refused
from slotwise.backends.local.dispatcher import Dispatcher, Linger
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.bench.load import percentile
from slotwise.bench.offline import LinearTime
from slotwise.errors import SlotwiseError
from slotwise.host.workers_by_load import LOOK_S, LoadMeter, WorkersByLoad, WorkersChange

RETURN_S = 0.0005  # from an answer to its client's next request
JOB_QUEUE_SIZE = 1000


@dataclass(frozen=True)
class Arrival:
    """A request that comes. within_s: its deadline, from then on."""

    at_s: float
    sender: str = ""
    within_s: float = 60.0


@dataclass(frozen=True)
class VirtualLoad:
    """What comes for so many seconds: of clients that ask again when they are answered, at a rate a second, and by a trace."""

    seconds: float = 30.0
    clients: int = 0
    rate: float = 0.0
    trace: Sequence[Arrival] = ()


@dataclass(frozen=True)
class VirtualSetting:
    """How the model is served. line: what a batch takes; noise: the standard deviation of that, as a share of it.

    max_workers: the load chooses their number from `workers` to that; 0: there are always as many. start_s: until a worker more
    is ready. cores: where more workers than that run, each is slower; 0: never.
    """

    line: LinearTime
    linger: Linger = "free"
    batch_size: int = 16
    max_batch_delay_ms: float = 2.0
    target_ms: float = 0.0
    workers: int = 1
    noise: float = 0.0
    max_workers: int = 0
    start_s: float = 2.0
    cores: int = 0


@dataclass(frozen=True)
class VirtualResult:
    """What came of it. in_time: answers within the target (all, where there is none). sent: the batches' senders, in order.

    refused: also who was in a batch that ended after the deadline. chosen, waits: the dispatcher's counts. most_workers: that
    were there at once. worker_s: how long each was there, in all. changes: of their number.
    """

    asked: int
    answered: int
    in_time: int
    refused: int
    p50_ms: float
    p99_ms: float
    mean_batch: float
    chosen: dict[str, int]
    waits: dict[str, int]
    most_workers: int
    worker_s: float
    changes: list[WorkersChange]
    sent: list[list[str]] = field(repr=False)


class _NobodyWaits:
    """Where an answer would go: what a queue needs of a future."""

    def __init__(self) -> None:
        self.refused: BaseException | None = None

    def done(self) -> bool:
        return self.refused is not None

    def set_exception(self, refused: BaseException) -> None:
        self.refused = refused


class _Host:
    """One run. events: a heap of (time, sequence number, what, data)."""

    def __init__(self, setting: VirtualSetting, load: VirtualLoad, seed: int) -> None:
        self.setting, self.load, self.draw = setting, load, random.Random(seed)
        self.dispatcher = Dispatcher(
            setting.batch_size,
            setting.max_batch_delay_ms / 1000,
            JOB_QUEUE_SIZE,
            setting.linger,
            setting.target_ms / 1000,
        )
        self.workers: list[BatchWorker] = []
        self.gone = list[float]()
        self.most_workers = 0
        self.meter = LoadMeter(self.dispatcher)
        self.chooser = WorkersByLoad(setting.workers, setting.max_workers)
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = itertools.count(1)
        self.asked = self.refused = 0
        self.latencies_s: list[float] = []
        self.ended = 0.0  # the last batch
        self.sent: list[list[str]] = []

    def schedule(self, at: float, what: str, data: Any = None) -> None:
        heapq.heappush(self.events, (at, next(self.count), what, data))

    def run(self) -> VirtualResult:
        for _ in range(self.setting.workers):
            self.join(0.0)
        if self.setting.max_workers:
            self.schedule(LOOK_S, "load", self.setting.workers)
        for i in range(self.load.clients):
            self.schedule(self.draw.random() * RETURN_S, "ask", f"client {i}")
        if self.load.rate:
            self.schedule(self.draw.expovariate(self.load.rate), "rate")
        for one in self.load.trace:
            self.schedule(one.at_s, "arrive", one)
        while self.events:
            now, _, what, data = heapq.heappop(self.events)
            if what == "finish":
                self.finish(now, data)
            elif what == "load":
                self.follow(now, data)
            elif what == "join":
                self.join(now)
            elif now < self.load.seconds or what == "arrive":
                self.come(now, what, data)
            self.dispatch(now)
        return self.result()

    def join(self, now: float) -> None:
        """A worker is ready."""
        self.workers.append(BatchWorker(lambda batch: None, lambda why: None, joined_at=now))
        self.most_workers = max(self.most_workers, len(self.workers))

    def follow(self, now: float, wanted: int) -> None:
        """Look at the load: there are to be so many workers, and perhaps others from now on."""
        if len(self.workers) != wanted:
            self.meter.forget()
            self.chooser.unsettled()
        elif load := self.meter.read(self.workers, now):
            wanted = self.chooser.choose(load, wanted, now, lambda: self.setting.max_workers)
            for _ in range(wanted - len(self.workers)):
                self.schedule(now + self.setting.start_s, "join")
            for worker in self.workers[wanted:]:
                worker.retiring = True
                self.leave(now, worker)
        if now < self.load.seconds:
            self.schedule(now + LOOK_S, "load", wanted)

    def leave(self, now: float, worker: BatchWorker) -> None:
        """A worker goes, once it has no batch."""
        if worker.retiring and not worker.busy:
            self.workers.remove(worker)
            self.gone.append(now - worker.joined_at)

    def come(self, now: float, what: str, data: Any) -> None:
        """A request comes, unless it is only time to look again."""
        if what == "rate":
            self.schedule(now + self.draw.expovariate(self.load.rate), "rate")
            self.ask(now, Arrival(now, f"caller {next(self.count)}"), again=False)
        elif what == "ask":
            self.ask(now, Arrival(now, data), again=True)
        elif what == "arrive":
            self.ask(now, data, again=False)

    def ask(self, now: float, arrival: Arrival, *, again: bool) -> None:
        self.asked += 1
        request = BackendRequest("m", now + arrival.within_s, sender=arrival.sender)
        request.repeatable = again  # whether its sender asks again
        try:
            self.dispatcher.refuse_if_late(request, now, self.workers)
            self.dispatcher.make_room(request, len(self.workers))
        except Refused:
            self.refused += 1
            self.ask_again(now, request)
            return
        self.dispatcher.waiting.append(WaitingRequest(next(self.count), request, b"", cast("Any", _NobodyWaits()), now))

    def ask_again(self, now: float, request: BackendRequest) -> None:
        if request.repeatable:
            self.schedule(now + RETURN_S, "ask", request.sender)

    def dispatch(self, now: float) -> None:
        before = sum(self.dispatcher.refused.values())
        for worker in self.workers:
            if worker.busy or worker.retiring:
                continue
            batch, until = self.dispatcher.form(worker, now, self.workers)
            if batch:
                worker.batch, worker.busy_since = batch, now
                self.sent.append([one.request.sender for one in batch])
                noise = max(0.1, 1 + self.setting.noise * self.draw.gauss(0, 1))
                shared = sum(one.busy for one in self.workers) / self.setting.cores if self.setting.cores else 1.0
                self.schedule(now + self.setting.line.at(len(batch)) / 1000 * noise * max(1.0, shared), "finish", worker)
            elif until < math.inf:
                self.schedule(until, "look")
        self.refused += sum(self.dispatcher.refused.values()) - before

    def finish(self, now: float, worker: BatchWorker) -> None:
        self.dispatcher.over(worker, now)
        for one in worker.batch:
            if one.request.deadline <= now:  # its client has had a 504
                self.refused += 1
            else:
                self.latencies_s.append(now - one.came_at)
            self.ask_again(now, one.request)
        worker.batch = ()
        self.leave(now, worker)
        self.ended = now

    def result(self) -> VirtualResult:
        known, target_s = sorted(self.latencies_s), self.setting.target_ms / 1000 or math.inf
        return VirtualResult(
            asked=self.asked,
            answered=len(known),
            in_time=sum(latency <= target_s for latency in known),
            refused=self.refused,
            p50_ms=percentile(known, 50) * 1000,
            p99_ms=percentile(known, 99) * 1000,
            mean_batch=sum(map(len, self.sent)) / max(1, len(self.sent)),
            chosen={str(why): count for why, count in self.dispatcher.chosen.items()},
            waits={str(why): count for why, count in self.dispatcher.waits.items()},
            most_workers=self.most_workers,
            worker_s=sum(self.gone) + sum(max(self.ended, self.load.seconds) - one.joined_at for one in self.workers),
            changes=list(self.chooser.changes),
            sent=self.sent,
        )


def serve(setting: VirtualSetting, load: VirtualLoad, seed: int = 0) -> VirtualResult:
    """What would come of a load; the same each time for a seed."""
    return _Host(setting, load, seed).run()


def day(seconds: float, capacity: float, seed: int = 0) -> list[Arrival]:
    """A made trace, a day in so many seconds: quiet, a ramp, the peak, a burst over what can be served, and quiet again.

    capacity: requests a second that the largest batches would do.
    """
    draw, at, arrivals = random.Random(seed), 0.0, list[Arrival]()
    while at < seconds:
        part = at / seconds
        share = 0.1 if part < 0.25 or part >= 0.85 else 1.4 if 0.6 <= part < 0.65 else 0.85
        if 0.25 <= part < 0.45:
            share = 0.1 + 0.75 * (part - 0.25) / 0.2
        at += draw.expovariate(share * capacity)
        arrivals.append(Arrival(at, f"caller {len(arrivals)}"))
    return arrivals


def read_trace(file: Path) -> list[Arrival]:
    """A recorded trace: a line of JSON for each request, with `at_s` and perhaps `sender`, `within_s`. Raises SlotwiseError."""
    arrivals = []
    for number, line in enumerate(file.read_bytes().removesuffix(b"\n").split(b"\n"), 1):  # a text may hold other ends of lines
        try:
            one = Arrival(**json.loads(line))
            arrivals.append(replace(one, at_s=float(one.at_s), sender=str(one.sender), within_s=float(one.within_s)))
            if not (math.isfinite(one.at_s) and one.at_s >= 0 and one.within_s > 0):
                raise ValueError("at_s is at least 0, within_s more than that")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            hint = 'each line is like {"at_s": 0.25, "sender": "a", "within_s": 1.0}'
            raise SlotwiseError(f"{file}, line {number}: {error}", hint) from None
    return arrivals
