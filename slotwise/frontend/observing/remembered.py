"""The requests that a front remembers: the last few thousand, within so many bytes, and what they say of the last seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slotwise.backends.request_way import BatchWay, RequestWay
from slotwise.frontend.observing.seen_request import SeenRequest
from slotwise.log_format import iso

MOST_BYTES = 16 << 20
OVER_S = 10.0  # that `numbers` looks back
SHOWN_MATES = 64
USUAL_BYTES = 4500  # of a request in a batch of up to 16 that ran once


class Remembered:
    """The last `most` requests. bytes: about what they take; what several share is counted for each."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        self.most, self.most_bytes, self.bytes = most, most_bytes, 0
        self._kept: deque[tuple[SeenRequest, int]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def keeps(self, seen: SeenRequest) -> bool:
        """What is for no model, and went well, is not worth a place: probes, scrapes."""
        return bool(seen.model) or seen.status >= 400

    def ended(self, seen: SeenRequest) -> None:
        """One more."""
        size = _size(seen)
        self._kept.append((seen, size))
        self.bytes += size
        while len(self._kept) > self.most or self.bytes > self.most_bytes:
            self.bytes -= self._kept.popleft()[1]

    def find(self, identity: str) -> SeenRequest | None:
        """The last request of this id, or whose record it is; None where none is remembered."""
        for seen, _ in reversed(self._kept):
            if seen.identity == identity or any(one.identity == identity for one in seen.records):
                return seen
        return None

    def numbers(self) -> dict[str, Any]:
        """The last seconds by model, as far back as requests are remembered; what has no model is "-"."""
        now, by_model = time.time(), dict[str, list[SeenRequest]]()
        since = max(now - OVER_S, self._kept[0][0].came) if len(self._kept) == self.most else now - OVER_S
        for seen, _ in reversed(self._kept):
            if seen.came + seen.seconds >= since:
                by_model.setdefault(seen.model or "-", []).append(seen)
            elif seen.came < since - OVER_S:
                break
        over_s = max(now - since, 0.001)
        return {"over_s": round(over_s, 2), "models": {model: _numbers(those, over_s) for model, those in by_model.items()}}


def _numbers(those: Sequence[SeenRequest], over_s: float) -> dict[str, Any]:
    times = sorted(seen.seconds for seen in those if seen.status < 400)
    sizes = [size for seen in those for one in seen.ways if (size := one.batch_size)]
    causes = Counter(f"{seen.status} {seen.reason}" for seen in those if seen.status >= 400)
    return {
        "answers_per_s": round(len(those) / over_s, 1),
        "p50_ms": _quantile_ms(times, 0.5),
        "p99_ms": _quantile_ms(times, 0.99),
        "batch": round(sum(sizes) / len(sizes), 1) if sizes else None,
        "errors": dict(causes.most_common(5)),
    }


def _quantile_ms(times: Sequence[float], share: float) -> float | None:
    return round(1000 * times[min(len(times) - 1, int(share * len(times)))], 2) if times else None


def _size(seen: SeenRequest) -> int:
    """About what it takes, from above. From here on it holds on to nothing of its batches' other requests but names."""
    tried = [(len(batch.mates), batch.report) for one in (seen, *seen.records) for batch, _ in one.tries]
    usual = all(mates <= 16 and (said is None or len(said.calls) <= 1) for mates, said in tried)
    if usual and len(tried) < 2 and not (seen.notes or seen.records):
        return USUAL_BYTES
    size = 1000
    for one in (seen, *seen.records):
        size += 300 + 120 * len(one.notes)
    for mates, said in tried:
        size += 400 + 120 * mates
        if said:
            size += sum(250 + 8 * len(call.slots) for call in said.calls)
    return size


def as_json(seen: SeenRequest) -> dict[str, Any]:
    """All that is known of a request. Times in milliseconds from when it came."""
    about = {name: getattr(seen, name) for name in ("method", "path", "model", "version", "key", "address", "status", "reason")}
    return {
        "request_id": seen.identity,
        "trace_id": seen.trace_word,
        "came": iso(seen.came),
        **about,
        "bytes_in": seen.bytes_in,
        "bytes_out": seen.bytes_out,
        "took_ms": round(1000 * seen.seconds, 3),
        **_way(seen, seen.came),
        "records": [{"request_id": one.identity, **_way(one, seen.came)} for one in seen.records],
    }


def _way(one: RequestWay, came: float) -> dict[str, Any]:
    pieces = {"pieces": one.pieces, "first_ms": _ms(one.first_piece - came), "last_ms": _ms(one.last_piece - came)}
    return {
        "placed_ms": _ms(one.placed - came) if one.placed else None,
        "batches": [_batch(batch, slot, came, one.identity) for batch, slot in one.batches],
        "notes": [{"at_ms": _ms(at - came), "what": what} for at, what in one.notes],
        **({"stream": pieces} if one.pieces else {}),
    }


def _batch(batch: BatchWay, slot: int, came: float, identity: str) -> dict[str, Any]:
    report = batch.report
    mates = [mate.identity for mate in batch.mates if mate.identity != identity]
    about: dict[str, Any] = {
        "batch": batch.number,
        "worker": batch.worker,
        "sent_ms": _ms(batch.sent - came),
        "slot": slot,
        "size": batch.size,
        "mates": mates[:SHOWN_MATES],
        "failure": batch.failure,
    }
    if report is None:
        return about
    calls: Iterable[Mapping[str, Any]] = (
        {
            "at_ms": _ms(report.began - came + call.at_ms / 1000),
            "took_ms": call.took_ms,
            "rows": call.rows,
            "size": call.size,
            "slots": list(call.slots),
            "had_it": slot in call.slots,
            "error": call.error,
        }
        for call in report.calls
    )
    told = {name: getattr(report, name) for name in ("decode_ms", "inference_ms", "total_ms", "rows", "padding", "cuts")}
    return about | told | {"engine": report.engine, "precision": report.precision, "calls": list(calls)}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
