"""A model server that exists only as arithmetic: how many answers a second would a setting give?

It forms batches as TorchServe does: one idle worker at a time collects; its batch closes when it is full, or max_batch_delay
after its first request. A batch of n takes a*n + b. Clients are a closed loop. Used to rank settings before anything is
measured, and to test the tuner on a server whose best setting is known.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass

from slotwise.bench.load import LoadPlan, LoadResult, RequestSample, summary
from slotwise.bench.offline import LinearTime
from slotwise.tune.space import TrialSetting

WARM_UP_BATCHES = 2  # a worker's first ones, when all clients arrive at once, are not typical


@dataclass(frozen=True)
class ServiceTimes:
    """What a worker needs. line: a batch of n on one thread; parallel: the share of it that threads divide.

    batch_ms: what the server adds to a batch; request_ms: what it adds to a request outside the workers.
    """

    line: LinearTime
    cores: int = 2
    parallel: float = 0.8
    batch_ms: float = 0.0
    request_ms: float = 0.2
    noise: float = 0.0

    def batch_time_ms(self, n: int, threads: int, busy: int) -> float:
        """A batch of n while `busy` workers run: more threads than cores take turns."""
        alone = self.line.at(n) * (1 - self.parallel + self.parallel / min(threads, self.cores))
        return (alone + self.batch_ms) * max(1.0, busy * threads / self.cores)


def simulate(service: ServiceTimes, setting: TrialSetting, clients: int, requests: int = 600, seed: int = 0) -> LoadResult:
    """Run the clients until `requests` are answered after the warm-up; virtual time, so it takes milliseconds."""
    return _Simulation(service, setting, clients, seed).until(requests)


class _Simulation:
    """Virtual time in ms. events: (time, order, what, data)."""

    def __init__(self, service: ServiceTimes, setting: TrialSetting, clients: int, seed: int) -> None:
        self.service, self.setting, self.clients = service, setting, clients
        self.draw = random.Random(seed)
        self.events: list[tuple[float, int, str, list[float]]] = []
        self.order = 0
        self.queue: deque[float] = deque()  # when each waiting request was sent
        self.idle = setting.workers
        self.closes: float | None = None  # when the batch that is being collected closes
        self.samples: list[RequestSample] = []
        for _ in range(clients):
            self.plan(self.draw.random(), "arrive", [0.0])

    def plan(self, at: float, what: str, data: list[float]) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, self.order, what, data))

    def until(self, requests: int) -> LoadResult:
        warm_up = WARM_UP_BATCHES * self.setting.workers * self.setting.batch_size + self.clients
        started_ms = 0.0
        while len(self.samples) < warm_up + requests:
            now, _, what, data = heapq.heappop(self.events)
            if what == "arrive":
                self.queue.append(now)
            elif what == "finish":
                self.idle += 1
                for sent in data:
                    latency_s = (now - sent + self.service.request_ms) / 1000
                    self.samples.append(RequestSample("200", False, now / 1000, latency_s, 0.0, len(data)))
                    self.plan(now + self.service.request_ms, "arrive", [])
            if len(self.samples) < warm_up:
                started_ms = now
            self.dispatch(now)
        plan = LoadPlan(self.clients, None, requests, started_ms / 1000)
        return summary(self.samples, plan)

    def dispatch(self, now: float) -> None:
        """Let the collecting worker start its batch, if it is full or its time is over."""
        size, delay = self.setting.batch_size, self.setting.max_batch_delay
        while self.idle and self.queue:
            if self.closes is None:
                self.closes = now + delay
                if size > len(self.queue) and delay > 0:
                    self.plan(self.closes, "close", [])
            if len(self.queue) < size and now < self.closes:
                return
            batch = [self.queue.popleft() for _ in range(min(size, len(self.queue)))]
            self.idle -= 1
            self.closes = None
            took = self.service.batch_time_ms(len(batch), self.setting.threads, self.setting.workers - self.idle)
            self.plan(now + took * (1 + self.service.noise * self.draw.gauss(0, 1)), "finish", batch)
