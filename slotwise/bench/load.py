"""Load a running server, and measure throughput, latency and errors.

closed loop   a number of clients, each waits for its answer before it asks again: what the server can do
open loop     requests arrive at a rate (Poisson's, or evenly), whether the server keeps up or not: what people would see.
              A latency counts from the moment the request was due, so a server that stalls cannot hide it
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slotwise.bench.bodies import RequestBody, deck
from slotwise.bench.http_connection import Connection, Target, run
from slotwise.bench.load_plan import LoadPlan, after_warm_up, share, window

BUSY = 0.9  # of one core: a client that is this busy is the limit
LATE_MS = 10.0  # an open-loop client that sends its requests this much too late (median) is the limit
TIMES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")
HANDLER_HEADERS = ("batch-size", "decode-ms", "inference-ms")  # x-..., what our handlers say of a batch

Tick = Callable[[float], None]  # called with the share that is done, 0..1


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request. status: the HTTP status, "timeout" or "connection". Times in seconds; late_s: sent after it was due."""

    status: str
    bad: bool
    finished_s: float
    latency_s: float
    late_s: float = 0.0
    batch_size: int = 0
    decode_ms: float = 0.0
    inference_ms: float = 0.0

    @property
    def began_s(self) -> float:
        """When it was sent, or was due."""
        return self.finished_s - self.latency_s


@dataclass(frozen=True)
class LoadResult:
    """The result of a load. req_s: good answers a second; latencies: of good answers, 0 where there are none.

    errors: good requests lost, by status. mean_batch: requests a batch, from the answers' headers.
    decode_ms, inference_ms: inside the handler, a batch.
    refused: the statuses that bad bodies got. client_cores: how busy the measuring process was. mean_ms, min_ms: 0 from wrk
    and ab. latencies_ms: each good answer's, sorted, for a figure; none from wrk and ab.
    """

    clients: int
    rate: float | None
    seconds: float
    requests: int
    req_s: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    mean_batch: float
    decode_ms: float
    inference_ms: float
    errors: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    client_cores: float = 0.0
    client_limited: bool = False
    mean_ms: float = 0.0
    min_ms: float = 0.0
    latencies_ms: tuple[float, ...] = field(default=(), repr=False)

    @property
    def lost(self) -> int:
        """Good requests that got no good answer."""
        return sum(self.errors.values())


def measure(target: Target, bodies: Sequence[RequestBody], plan: LoadPlan, tick: Tick = lambda done: None) -> LoadResult:
    """Load `target` as planned."""
    return run(_LoadRun(target, deck(bodies, plan.poison, plan.seed), plan, tick).run())


def due_times(plan: LoadPlan, rate: float) -> Iterator[float]:
    """When requests are due, without end, in seconds since the start.

    Those of the measured part come at the same times after the warm-up, however long that is: two loads that differ in nothing
    else have as many requests.
    """
    for begins_s, ends_s in ((0.0, plan.warm_up_s), (plan.warm_up_s, math.inf)):
        draw, due_s = random.Random(plan.seed), begins_s
        while due_s < ends_s:
            yield due_s
            due_s += 1 / rate if plan.even else draw.expovariate(rate)


class _LoadRun:
    """One load while it runs. All times are seconds since its start."""

    def __init__(self, target: Target, bodies: Iterator[RequestBody], plan: LoadPlan, tick: Tick) -> None:
        self.target, self.bodies, self.plan, self.tick = target, bodies, plan, tick
        self.samples: list[RequestSample] = []
        self.encoded: dict[tuple[str, bytes], bytes] = {}  # (content type, body): the request as bytes
        self.started_s = 0.0
        self.cpu_s = 0.0
        self.counted = 0

    def now(self) -> float:
        return time.perf_counter() - self.started_s

    async def run(self) -> LoadResult:
        self.started_s, self.cpu_s = time.perf_counter(), time.process_time()
        ticker = asyncio.ensure_future(self._tick())
        try:
            await (self._closed() if self.plan.rate is None else self._open(self.plan.rate))
        finally:
            ticker.cancel()
        cores = (time.process_time() - self.cpu_s) / max(self.now(), 1e-9)
        return summary(self.samples, self.plan, cores)

    async def _closed(self) -> None:
        async def client() -> None:
            connection = Connection(self.target)
            while self._more():
                started_s = self.now()
                self.counted += started_s >= self.plan.warm_up_s
                await self._ask(connection, started_s, 0.0)
            connection.close()

        await asyncio.gather(*[client() for _ in range(self.plan.clients)])

    async def _open(self, rate: float) -> None:
        idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for _ in range(self.plan.clients):
            idle.put_nowait(Connection(self.target))
        arrivals: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is None:  # one that failed is raised at the end
                arrivals.discard(task)

        async def arrive(due_s: float) -> None:
            late_s, connection = self.now() - due_s, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.plan.timeout_s - late_s):
                    connection = await idle.get()
            if connection is None:
                self.samples.append(RequestSample("timeout", next(self.bodies).bad, self.now(), self.plan.timeout_s, late_s))
                return
            await self._ask(connection, due_s, late_s)
            idle.put_nowait(connection)

        for due_s in due_times(self.plan, rate):
            if not self._more(due_s):
                break
            await asyncio.sleep(max(0.0, due_s - self.now()))
            self.counted += due_s >= self.plan.warm_up_s
            task = asyncio.ensure_future(arrive(due_s))
            arrivals.add(task)
            task.add_done_callback(ended)
        await asyncio.gather(*arrivals)
        while not idle.empty():
            idle.get_nowait().close()

    def _more(self, at_s: float | None = None) -> bool:
        if self.plan.requests is not None:
            return self.counted < self.plan.requests
        return (self.now() if at_s is None else at_s) < self.plan.warm_up_s + (self.plan.seconds or 0.0)

    async def _ask(self, connection: Connection, due_s: float, late_s: float) -> None:
        """One request, answered or counted as what went wrong."""
        body = next(self.bodies)
        key = (body.content_type, body.data)
        if key not in self.encoded:
            self.encoded[key] = self.target.request(body.data, body.content_type)
        status, headers = "timeout", dict[str, str]()
        try:
            async with asyncio.timeout(self.plan.timeout_s - (self.now() - due_s)):
                reply = await connection.ask(self.encoded[key])
            status, headers = str(reply.status), dict(reply.headers)
        except TimeoutError:
            pass
        except OSError:
            status = "connection"
            await asyncio.sleep(0.01)  # do not ask a server that is gone a million times a second
        batch_size, decode_ms, inference_ms = (_number(headers.get(f"x-{name}", "")) for name in HANDLER_HEADERS)
        finished_s = self.now()
        self.samples.append(
            RequestSample(status, body.bad, finished_s, finished_s - due_s, late_s, int(batch_size), decode_ms, inference_ms)
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            if self.plan.requests is not None:
                self.tick(min(1.0, self.counted / self.plan.requests))
            else:
                self.tick(min(1.0, self.now() / (self.plan.warm_up_s + (self.plan.seconds or 0.0))))


def summary(samples: Sequence[RequestSample], plan: LoadPlan, client_cores: float = 0.0) -> LoadResult:
    """The samples in numbers. client_cores: how busy the measuring process was."""
    counted = after_warm_up(samples, plan)
    good = [s for s in counted if not s.bad and s.status.startswith("2")]
    began_s, until_s = window(counted, plan)
    seconds = max(until_s - began_s, 1e-9)
    latencies = sorted(s.latency_s * 1000 for s in good)
    in_batches = [s for s in counted if s.batch_size]
    batches = sum(1 / s.batch_size for s in in_batches)  # a batch of n has n samples
    late_ms = statistics.median(s.late_s for s in counted) * 1000 if counted else 0.0
    return LoadResult(
        clients=plan.clients,
        rate=plan.rate,
        seconds=seconds,
        requests=len(counted),
        req_s=sum(share(s, began_s, until_s) for s in good) / seconds,
        **{f"p{p}_ms": percentile(latencies, p) for p in (50, 90, 95, 99)},
        max_ms=latencies[-1] if latencies else 0.0,
        mean_batch=len(in_batches) / batches if batches else 0.0,
        decode_ms=sum(s.decode_ms / s.batch_size for s in in_batches) / batches if batches else 0.0,
        inference_ms=sum(s.inference_ms / s.batch_size for s in in_batches) / batches if batches else 0.0,
        errors=dict(Counter(s.status for s in counted if not s.bad and not s.status.startswith("2"))),
        refused=dict(Counter(s.status for s in counted if s.bad)),
        client_cores=client_cores,
        client_limited=client_cores >= BUSY or late_ms >= LATE_MS,
        mean_ms=statistics.fmean(latencies) if latencies else 0.0,
        min_ms=latencies[0] if latencies else 0.0,
        latencies_ms=tuple(latencies),
    )


def percentile(ordered: Sequence[float], p: float) -> float:
    """The value that p percent of the sorted values do not exceed (nearest rank); 0 where there are none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]


def rounded(measured: LoadResult) -> dict[str, Any]:
    """The numbers as they are printed: milliseconds and rates to a sensible digit. Single latencies are not printed.

    Where nothing was answered no time is known: None, not 0.
    """
    numbers = asdict(replace(measured, latencies_ms=()))
    del numbers["latencies_ms"]
    if not measured.max_ms:
        numbers |= dict.fromkeys((*TIMES, "mean_ms", "min_ms"))
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in numbers.items()}


def _number(text: str) -> float:
    """What a header says; 0 where it says no number."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
