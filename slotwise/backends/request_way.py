"""The way of one request: what is known of it while it is answered, and of the batches that it was in.

Numbers and names only, nothing of a body or a header. A front that is asked to remember, to log or to trace gives a request a
way; without one nothing is noted anywhere.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_NOTES, MOST_TRIES = 16, 8  # of one request that are kept
MOST_CALLS = 256  # of the model, of one batch
LONGEST_REPORT = 1 << 16
TIMES, COUNTS = ("began", "decode_ms", "inference_ms", "total_ms"), ("rows", "padding", "cuts")

_numbers = itertools.count(1)


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


class Mate(NamedTuple):
    """One request of a batch, as the others know it."""

    identity: str
    trace_id: int
    span_id: int
    sampled: bool


@dataclass(eq=False, slots=True)
class BatchWay:
    """One batch that went to a worker. number: in this process. sent: Unix time. size: its requests, watched or not. wanted:
    its report, whatever happens; else only where a call of the model failed.

    failure, failed: why it came to nothing, and when; "" and 0 where it did not. span: its trace's id and its own, if any.
    """

    worker: str
    size: int
    mates: tuple[Mate, ...] = ()
    number: int = field(default_factory=lambda: next(_numbers))
    sent: float = field(default_factory=time.time)
    report: BatchReport | None = None
    wanted: bool = False
    failure: str = ""
    failed: float = 0.0
    span: tuple[int, int] | None = None

    def fail(self, why: str) -> None:
        """It has come to nothing."""
        self.failure, self.failed = why, time.time()


class Try(NamedTuple):
    """One time that a worker had the request, in this slot of that batch."""

    batch: BatchWay
    slot: int


class SaidBatch(NamedTuple):
    """What the headers of an answer say of its batch. at: Unix time when it was there."""

    size: int
    slot: int
    decode_ms: float
    inference_ms: float
    at: float


class RequestWay:
    """What is known of one request. Times are Unix time in seconds, 0 where it has not come to that.

    trace_id, span_id: W3C's, of its trace and of itself, 0 where nobody traces it. sampled: its trace is kept whatever becomes
    of it. placed: it was read, and let in. notes: what happened, and when. said: what its answer's headers say
    of its batch. Only what differs from these defaults takes time and room.
    """

    identity: str = ""
    trace_id: int = 0
    span_id: int = 0
    sampled: bool = False
    placed: float = 0.0
    tries: tuple[Try, ...] = ()
    notes: tuple[tuple[float, str], ...] = ()
    said: SaidBatch | None = None
    first_piece: float = 0.0
    last_piece: float = 0.0
    pieces: int = 0

    @property
    def traceparent(self) -> str:
        """W3C's header for what is asked on its behalf."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @property
    def batches(self) -> tuple[Try, ...]:
        """Each time that a worker had it, as far as anybody knows."""
        said = self.said
        if said is None:
            return self.tries
        if not self.tries:
            self.tried(BatchWay("", said.size, (Mate(self.identity, self.trace_id, self.span_id, self.sampled),)), said.slot)
        batch = self.tries[-1].batch
        if batch.report is None and not batch.failure:
            total_ms = said.decode_ms + said.inference_ms
            batch.sent = min(batch.sent, said.at - total_ms / 1000)
            batch.report = BatchReport(batch.sent, said.decode_ms, said.inference_ms, total_ms, 0, 0, 0, "", "", ())
        return self.tries

    @property
    def batch_size(self) -> int:
        """Of the last batch that it was in; 0 where nobody knows."""
        return self.tries[-1].batch.size if self.tries else self.said.size if self.said else 0

    def note(self, what: str) -> None:
        """Something happened to it."""
        if len(self.notes) < MOST_NOTES:
            self.notes = (*self.notes, (time.time(), what))

    def tried(self, batch: BatchWay, slot: int) -> None:
        """A worker gets it."""
        if len(self.tries) < MOST_TRIES:
            self.tries = (*self.tries, Try(batch, slot))

    def piece(self) -> None:
        """A piece of its answer goes to its client."""
        self.last_piece = time.time()
        self.first_piece = self.first_piece or self.last_piece
        self.pieces += 1


def sent_together(worker: str, ways: Sequence[RequestWay | None], size: int = 0) -> BatchWay | None:
    """A batch of these requests goes to a worker; None where nobody watches any of them. size: with others that it has."""
    mates = tuple([Mate(way.identity, way.trace_id, way.span_id, way.sampled) for way in ways if way is not None])
    if not mates:
        return None
    batch = BatchWay(worker, size or len(ways), mates, wanted=any([mate.sampled for mate in mates]))
    for slot, way in enumerate(ways):
        if way is not None:
            way.tried(batch, slot)
    return batch
