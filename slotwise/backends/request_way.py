"""The way of one request: what is known of it while it is answered, and of the batches that it was in.

Numbers and names only, nothing of a body or a header. A front that is asked to remember, to log or to trace gives a request a
way; without one nothing is noted anywhere.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

MOST_NOTES, MOST_TRIES = 16, 8  # of one request that are kept
MOST_CALLS = 256  # of the model, of one batch
LONGEST_REPORT = 1 << 16
TIMES, COUNTS = ("began", "decode_ms", "inference_ms", "total_ms"), ("rows", "padding", "cuts")

_numbers = itertools.count(1)
_random = Random(secrets.randbits(128))


def new_ids() -> tuple[int, int]:
    """W3C's, of a trace and of a span, never 0."""
    bits = _random.getrandbits(192)
    return bits >> 64 or 1, bits & (1 << 64) - 1 or 1


def new_span_id() -> int:
    """W3C's, never 0."""
    return _random.getrandbits(64) or 1


@dataclass(frozen=True)
class BatchWork:
    """What a worker says of the batch that an answer came from. batch_size: 0 where no worker answered."""

    batch_size: int = 0
    decode_ms: float = 0.0
    inference_ms: float = 0.0


NO_BATCH = BatchWork()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of the model. at_ms: since its batch began. rows, padding: what ran, in all `size`. slots: whose rows they were.

    error: the kind of what it raised; "" where it gave outputs.
    """

    at_ms: float
    took_ms: float
    rows: int
    size: int
    slots: tuple[int, ...]
    error: str


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a worker says of one batch. began: Unix time in seconds. cuts: how often a group of rows was halved."""

    began: float
    decode_ms: float
    inference_ms: float
    total_ms: float
    rows: int
    padding: int
    cuts: int
    engine: str
    precision: str
    calls: tuple[ModelCall, ...]

    @classmethod
    def read(cls, text: bytes) -> BatchReport:
        """What a worker wrote. Raises ValueError where it is no report."""
        if len(text) > LONGEST_REPORT:
            raise ValueError(f"a report of {len(text)} bytes")
        try:
            said = json.loads(text)
            calls = tuple(
                ModelCall(_number(at), _number(took), int(rows), int(size), tuple(map(int, slots)), str(error)[:80])
                for at, took, rows, size, slots, error in said["calls"][:MOST_CALLS]
            )
            began, decode_ms, inference_ms, total_ms = (_number(said[name]) for name in TIMES)
            rows, padding, cuts = (int(_number(said[name])) for name in COUNTS)
            engine, precision = (str(said[name])[:80] for name in ("engine", "precision"))
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"no report of a batch: {type(error).__name__}") from None
        return cls(began, decode_ms, inference_ms, total_ms, rows, padding, cuts, engine, precision, calls)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("no number")
    return float(value)


class Observed(Protocol):
    """A request, as BackendRequest has it."""

    identity: str
    way: RequestWay | None
    seen: RequestWay | None

    def watch(self) -> RequestWay | None:
        """Its way, from now on."""


class Mate(NamedTuple):
    """One request of a batch, as the others know it. Ids are 0 where nothing of it was noted."""

    identity: str
    trace_id: int
    span_id: int
    sampled: bool


@dataclass(eq=False, slots=True)
class BatchWay:
    """One batch that went to a worker. number: in this process. sent: Unix time. size: its requests, observed or not. wanted:
    its report, whatever happens; else only where a call of the model failed.

    failure, failed: why it came to nothing, and when; "" and 0 where it did not. span: its trace's id and its own, if any.
    """

    worker: str
    size: int
    requests: Sequence[Observed] = ()
    number: int = field(default_factory=lambda: next(_numbers))
    sent: float = field(default_factory=time.time)
    report: BatchReport | None = None
    wanted: bool = False
    failure: str = ""
    failed: float = 0.0
    span: tuple[int, int] | None = None
    _mates: tuple[Mate, ...] = ()

    @property
    def mates(self) -> tuple[Mate, ...]:
        """Its requests that somebody observes, as the others know them. Once asked, it holds on to none of them."""
        if self.requests:
            self._mates = tuple([_as_mate(one) for one in self.requests if one.seen is not None])
            self.requests = ()
        return self._mates

    def note(self) -> None:
        """Have those of its requests that have a way know that they were in it."""
        for slot, one in enumerate(self.requests):
            if (way := one.way) is not None:
                self.wanted |= way.sampled
                way.tried(self, slot)

    def fail(self, why: str) -> None:
        """It has come to nothing."""
        self.failure, self.failed = why, time.time()


class RequestWay:
    """What is known of one request.

    came, began: when, as Unix time and on time.monotonic's clock. traced: it has a trace. sampled: that is kept in any case.
    sent_at, answered_at: it was read, and let in; its answer was there: by time.monotonic, 0 where it has not come to that.
    tries: each time that a worker had it, in this slot of that batch. notes: what happened, and when: Unix time, as those of
    pieces. late_s: nothing is noted before something goes wrong, or it has taken so long; None: all of it is. work, slot: what
    its answer's headers say of its batch. Only what differs from these defaults takes time and room.
    """

    identity: str = ""
    came: float = 0.0
    began: float = 0.0
    traced: bool = False
    sampled: bool = False
    sent_at: float = 0.0
    answered_at: float = 0.0
    tries: tuple[tuple[BatchWay, int], ...] = ()
    notes: tuple[tuple[float, str], ...] = ()
    work: BatchWork = NO_BATCH
    slot: int = 0
    first_piece: float = 0.0
    last_piece: float = 0.0
    pieces: int = 0
    late_s: float | None = None
    _ids: tuple[int, int] = (0, 0)

    @property
    def ids(self) -> tuple[int, int]:
        """W3C's, of its trace and of itself; 0 where nobody traces it. They are drawn when somebody first asks."""
        if self.traced and not self._ids[0]:
            self._ids = new_ids()
        return self._ids

    def trace(self, trace_id: int) -> None:
        """It is part of this trace."""
        self.traced, self._ids = True, (trace_id, new_span_id())

    @property
    def traceparent(self) -> str:
        """W3C's header for what is asked on its behalf."""
        trace_id, span_id = self.ids
        return f"00-{trace_id:032x}-{span_id:016x}-{int(self.sampled):02x}"

    @property
    def trace_word(self) -> str:
        """Its trace's id, as logs have it; "" where nobody traces it."""
        return f"{self.ids[0]:032x}" if self.traced else ""

    @property
    def placed(self) -> float:
        """When it was read, and let in: Unix time; 0 where it has not come to that."""
        return self._unix(self.sent_at) if self.sent_at else 0.0

    @property
    def batches(self) -> tuple[tuple[BatchWay, int], ...]:
        """Each time that a worker had it, and in which slot, as far as anybody knows."""
        work = self.work
        if not work.batch_size:
            return self.tries
        if not self.tries:
            alone = Mate(self.identity, *self.ids, self.sampled)
            self.tried(BatchWay("", work.batch_size, _mates=(alone,)), self.slot)
        batch, _ = self.tries[-1]
        if batch.report is None and not batch.failure:
            total_ms = work.decode_ms + work.inference_ms
            batch.sent = min(batch.sent, self._unix(self.answered_at) - total_ms / 1000)
            batch.report = BatchReport(batch.sent, work.decode_ms, work.inference_ms, total_ms, 0, 0, 0, "", "", ())
        return self.tries

    @property
    def batch_size(self) -> int:
        """Of the last batch that it was in; 0 where nobody knows."""
        return self.tries[-1][0].size if self.tries else self.work.batch_size

    def note(self, what: str) -> None:
        """Something happened to it."""
        if len(self.notes) < MOST_NOTES:
            self.notes = (*self.notes, (time.time(), what))

    def tried(self, batch: BatchWay, slot: int) -> None:
        """A worker has it."""
        if len(self.tries) < MOST_TRIES and not (self.tries and self.tries[-1][0] is batch):
            self.tries = (*self.tries, (batch, slot))

    def answered(self, sent_at: float, seconds: float, work: BatchWork, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """It is answered: what the answer's headers say stands in for what no queue of ours has told."""
        self.sent_at, self.answered_at, self.work = sent_at, sent_at + seconds, work
        if work.batch_size and not self.tries:
            slot = next((value for name, value in headers if name == b"x-batch-slot"), b"")
            self.slot = int(slot) if slot.isdigit() and len(slot) < 6 else 0

    def piece(self) -> None:
        """A piece of its answer goes to its client."""
        self.last_piece = time.time()
        self.first_piece = self.first_piece or self.last_piece
        self.pieces += 1

    def _unix(self, at: float) -> float:
        return self.came + at - self.began


def sent_together(worker: str, requests: Sequence[Observed], size: int = 0) -> BatchWay | None:
    """A batch of these requests goes to a worker; None where none of them has a way. size: with others that it has."""
    if all([one.way is None for one in requests]):
        return None
    batch = BatchWay(worker, size or len(requests), requests)
    batch.note()
    return batch


def seen_now(batch: BatchWay | None, worker: str, requests: Sequence[Observed], since: float) -> BatchWay | None:
    """Something has happened to a batch: whoever observes its requests knows of it from now on. since: when it was sent."""
    for one in requests:
        one.watch()
    if batch is not None:
        batch.note()
        return batch
    if (batch := sent_together(worker, requests)) is not None:
        batch.sent = since
    return batch


def _as_mate(one: Observed) -> Mate:
    return Mate(one.identity, 0, 0, False) if one.way is None else Mate(one.identity, *one.way.ids, one.way.sampled)
