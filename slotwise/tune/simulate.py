"""Simulate a model server: how many answers a second would a setting give?

It forms batches as TorchServe does: one idle worker at a time collects; its batch closes when it is full, or max_batch_delay
after its first request. A batch of n takes a*n + b. Every client waits for its answer before it asks again. The search ranks
settings by it before it measures any, and the tests run the tuner on a simulated server whose best setting is known.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass

from slotwise.bench.load import LoadResult, RequestSample, summary
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.offline import LinearTime
from slotwise.tune.space import TrialSetting

WARM_UP_BATCHES = 2  # a worker's first ones, when all clients arrive at once, are not typical


@dataclass(frozen=True)
class ServiceTimes:
    """How long a worker takes. line: a batch of n on one thread; parallel: the share of it that threads divide.

    batch_ms: what the server adds to a batch; request_ms: what it adds to a request outside the workers. noise: the standard
    deviation of a batch's time, as a share of it.
    """

    line: LinearTime
    cores: int = 2
    parallel: float = 0.8
    batch_ms: float = 0.0
    request_ms: float = 0.2
    noise: float = 0.0

    def batch_time_ms(self, n: int, threads: int, busy: int) -> float:
        """Milliseconds for a batch of n while `busy` workers run: more threads than cores take turns."""
        alone = self.line.at(n) * (1 - self.parallel + self.parallel / min(threads, self.cores))
        return (alone + self.batch_ms) * max(1.0, busy * threads / self.cores)


def simulate(service: ServiceTimes, setting: TrialSetting, clients: int, requests: int = 600, seed: int = 0) -> LoadResult:
    """Run the clients until `requests` are answered after the warm-up. Time is virtual: it takes milliseconds."""
    return _Simulation(service, setting, clients, seed).run_until(requests)


class _Simulation:
    """One simulation. Times in virtual ms. events: a heap of (time, sequence number, "arrive" | "finish" | "close", data)."""

    def __init__(self, service: ServiceTimes, setting: TrialSetting, clients: int, seed: int) -> None:
        self.service, self.setting, self.clients = service, setting, clients
        self.draw = random.Random(seed)
        self.events: list[tuple[float, int, str, list[float]]] = []
        self.sequence = 0
        self.queue: deque[float] = deque()  # when each waiting request was sent
        self.idle_workers = setting.workers
        self.closes: float | None = None  # when the batch that is being collected closes
        self.samples: list[RequestSample] = []
        for _ in range(clients):
            self.schedule(self.draw.random(), "arrive", [0.0])

    def schedule(self, at: float, kind: str, data: list[float]) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at, self.sequence, kind, data))

    def run_until(self, requests: int) -> LoadResult:
        warm_up = WARM_UP_BATCHES * self.setting.workers * self.setting.batch_size + self.clients
        started_ms = 0.0
        while len(self.samples) < warm_up + requests:
            now, _, kind, data = heapq.heappop(self.events)
            if kind == "arrive":
                self.queue.append(now)
            elif kind == "finish":
                self.idle_workers += 1
                for sent in data:
                    latency_s = (now - sent + self.service.request_ms) / 1000
                    self.samples.append(RequestSample("200", False, now / 1000, latency_s, 0.0, len(data)))
                    self.schedule(now + self.service.request_ms, "arrive", [])
            if len(self.samples) < warm_up:
                started_ms = now
            self.dispatch(now)
        return summary(self.samples, LoadPlan(self.clients, None, requests, started_ms / 1000))

    def dispatch(self, now: float) -> None:
        """Let idle workers start their batches, as far as they are full or their time is over."""
        size, delay = self.setting.batch_size, self.setting.max_batch_delay
        while self.idle_workers and self.queue:
            if self.closes is None:
                self.closes = now + delay
                if size > len(self.queue) and delay > 0:
                    self.schedule(self.closes, "close", [])
            if len(self.queue) < size and now < self.closes:
                return
            batch = [self.queue.popleft() for _ in range(min(size, len(self.queue)))]
            self.idle_workers -= 1
            self.closes = None
            busy_workers = self.setting.workers - self.idle_workers
            took_ms = self.service.batch_time_ms(len(batch), self.setting.threads, busy_workers)
            noise = 1 + self.service.noise * self.draw.gauss(0, 1)
            self.schedule(now + took_ms * noise, "finish", batch)
