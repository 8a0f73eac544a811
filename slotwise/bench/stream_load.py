"""Load a running server with streams: how long until the first piece, how long between two, and how many come a second.

A closed loop: each client reads its stream to the end before it asks for another. A stream counts where it is whole.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from slotwise.backends.exchange import RawHeaders
from slotwise.bench.bodies import RequestBody, deck
from slotwise.bench.http_connection import Target, run
from slotwise.bench.load import percentile
from slotwise.bench.load_plan import LoadPlan, after_warm_up, share, window
from slotwise.client.http_exchange import REPLY_MAX_BYTES, HttpExchange
from slotwise.client.stream_pieces import EVENTS

END, PIECE = b"event: end\n", b"data: "


@dataclass(frozen=True)
class StreamSample:
    """One stream. Times in seconds since the start of the load: when it was asked for, when each piece came, and its end.

    status: of HTTP; "broken" where it has no good end, "whole" where the server gives no stream, "timeout", "connection".
    """

    status: str
    began_s: float
    pieces_s: tuple[float, ...] = ()
    ended_s: float = 0.0

    @property
    def finished_s(self) -> float:
        """When it was over."""
        return max((self.began_s, self.ended_s, *self.pieces_s))


@dataclass(frozen=True)
class StreamLoadResult:
    """The result of a load. streams: those that are whole; the times are theirs. errors: the others, by status.

    pieces: of all streams that are whole. first, between: until the first piece, and from one to the next, of any stream.
    seconds: what was measured. streams_s, pieces_s: within it; of a stream that lies across an end, its share.
    """

    clients: int
    seconds: float
    streams: int
    pieces: int
    streams_s: float
    pieces_s: float
    first_p50_ms: float
    first_p99_ms: float
    between_p50_ms: float
    between_p99_ms: float
    errors: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The numbers as they are printed; None for times where no stream was whole."""
        numbers = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return numbers if self.streams else {name: None if name.endswith("_ms") else numbers[name] for name in numbers}


class TimedExchange(HttpExchange):
    """A connection that knows when each part of its answer came. marks: bytes of the body until then, and the time."""

    def __init__(self, reply_max_bytes: int = REPLY_MAX_BYTES) -> None:
        super().__init__(reply_max_bytes)
        self.marks: list[tuple[int, float]] = []

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.marks = []

    def on_body(self, part: bytes) -> None:
        super().on_body(part)
        before = self.marks[-1][0] if self.marks else 0
        self.marks.append((before + len(part), time.perf_counter()))


def measure(target: Target, bodies: Sequence[RequestBody], plan: LoadPlan) -> StreamLoadResult:
    """Load `target` as planned; of the plan no rate and no bad bodies."""
    return summary(run(_StreamRun(target, deck(bodies, 0.0, plan.seed), plan).run()), plan)


class _StreamRun:
    """One load while it runs."""

    def __init__(self, target: Target, bodies: Iterator[RequestBody], plan: LoadPlan) -> None:
        self.target = Target(target.url, {**target.headers, "accept": EVENTS})
        self.bodies, self.plan = bodies, plan
        self.samples: list[StreamSample] = []
        self.started = 0.0
        self.counted = 0

    async def run(self) -> list[StreamSample]:
        self.started = time.perf_counter()
        await asyncio.gather(*[self._client() for _ in range(self.plan.clients)])
        return self.samples

    def _more(self, now_s: float) -> bool:
        if self.plan.requests is not None:
            return self.counted < self.plan.requests
        return now_s < self.plan.warm_up_s + (self.plan.seconds or 0.0)

    async def _client(self) -> None:
        exchange = None
        while self._more(began_s := time.perf_counter() - self.started):
            self.counted += began_s >= self.plan.warm_up_s
            body, status, pieces = next(self.bodies), "timeout", list[float]()
            try:
                async with asyncio.timeout(self.plan.timeout_s):
                    if exchange is None or not exchange.usable:
                        loop = asyncio.get_running_loop()
                        _, exchange = await loop.create_connection(TimedExchange, *self.target.address)
                    code, headers, answer = await exchange.ask(self.target.request(body.data, body.content_type))
                status, pieces = read(code, headers, answer, exchange.marks)
            except TimeoutError:
                pass
            except OSError:
                status = "connection"
                await asyncio.sleep(0.01)  # do not ask a server that is gone a million times a second
            came, ended_s = tuple(at - self.started for at in pieces), time.perf_counter() - self.started
            self.samples.append(StreamSample(status, began_s, came, ended_s))
        if exchange is not None:
            exchange.close()


def read(code: int, headers: RawHeaders, body: bytes, marks: Sequence[tuple[int, float]]) -> tuple[str, list[float]]:
    """The status of an answer, and when each of its pieces was whole."""
    if code != 200:
        return str(code), []
    if not any(name.lower() == b"content-type" and value.startswith(EVENTS.encode()) for name, value in headers):
        return "whole", []
    times, at, marked = list[float](), 0, iter(marks)
    upto, now = next(marked, (0, 0.0))
    *events, rest = body.split(b"\n\n")
    for event in events:
        at += len(event) + 2
        while upto < at:
            upto, now = next(marked)
        if event.startswith(PIECE):
            times.append(now)
    good = not rest and bool(events) and events[-1].startswith(END)
    return ("200" if good else "broken"), times


def summary(samples: Sequence[StreamSample], plan: LoadPlan) -> StreamLoadResult:
    """The samples in numbers: those of streams that ended after the warm-up; where a number is planned, that began after it."""
    counted = after_warm_up(samples, plan)
    from_s, until_s = window(counted, plan)
    good = [one for one in counted if one.status == "200"]
    first = sorted((one.pieces_s[0] - one.began_s) * 1000 for one in good if one.pieces_s)
    between = sorted((after - before) * 1000 for one in good for before, after in pairwise(one.pieces_s))
    seconds = max(until_s - from_s, 1e-9)
    return StreamLoadResult(
        clients=plan.clients,
        seconds=seconds,
        streams=len(good),
        pieces=sum(len(one.pieces_s) for one in good),
        streams_s=sum(share(one, from_s, until_s) for one in good) / seconds,
        pieces_s=sum(from_s <= at <= until_s for one in good for at in one.pieces_s) / seconds,
        first_p50_ms=percentile(first, 50),
        first_p99_ms=percentile(first, 99),
        between_p50_ms=percentile(between, 50),
        between_p99_ms=percentile(between, 99),
        errors=dict(Counter(one.status for one in counted if one.status != "200")),
    )
