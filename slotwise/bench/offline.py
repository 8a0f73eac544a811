"""Time a handler without a server: a batch as a whole, its decode, model and encode, and the line a*n + b through the times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from slotwise.archive.local_model import LocalModel
from slotwise.bench.bodies import RequestBody
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held, let_through
from slotwise.profiles.profile import load_profile

LEAST_REPEATS = 5


@dataclass(frozen=True)
class BatchTiming:
    """The median of the full batches of n requests and its parts, in ms. batch_ms = decode_ms + model_ms + encode_ms."""

    n: int
    repeats: int
    batch_ms: float
    decode_ms: float
    model_ms: float
    encode_ms: float

    @property
    def item_ms(self) -> float:
        """Milliseconds a request."""
        return self.batch_ms / self.n


@dataclass(frozen=True)
class LinearTime:
    """A batch of n takes a_ms * n + b_ms."""

    a_ms: float
    b_ms: float

    def at(self, n: float) -> float:
        """Milliseconds for a batch of n."""
        return self.a_ms * n + self.b_ms


def fit(points: Sequence[tuple[float, float]]) -> LinearTime:
    """The line through the points (n, milliseconds). Its slope is the median of the slopes between all pairs of points (Theil
    and Sen), so that one disturbed point does not bend it. One point: everything is a_ms. Neither number is negative.
    """
    slopes = [(y - v) / (x - u) for (x, y), (u, v) in combinations(points, 2) if x != u]
    if not slopes:
        x, y = points[0]
        return LinearTime(y / x, 0.0)
    a = max(0.0, statistics.median(slopes))
    return LinearTime(a, max(0.0, statistics.median(y - a * x for x, y in points)))


def measure(
    archive: Path,
    bodies: Sequence[RequestBody],
    batch_sizes: Sequence[int],
    *,
    seconds: float = 1.0,
    environ: Mapping[str, str] | None = None,
    done: Callable[[BatchTiming], None] = lambda timed: None,
) -> list[BatchTiming]:
    """Time the archive's handler on full batches, `seconds` a size, in a process of its own.

    environ: the worker's environment, as `environment` makes it.
    """
    timings = []
    sent = [(body.data, {"content-type": body.content_type}) for body in bodies]
    with held(), LocalModel(archive, batch_size=batch_sizes[0], environ=environ) as model, let_through():
        for turn, n in enumerate(batch_sizes):
            if turn:
                model.start(n)
            for least_s in (0.0, 0.0, seconds):  # the first two warm up
                answers, times = model.timed(sent, n, least_s)
            while len(times) < LEAST_REPEATS and all(answer.status == 200 for answer in answers):
                answers, more = model.timed(sent, n)
                times += more
            refused = next((answer for answer in answers if answer.status != 200), None)
            if refused:
                text = refused.body[:200].decode("utf-8", "replace")
                message = f"{archive.name}: the model answers an example with {refused.status}: {text}"
                raise SlotwiseError(message, "see `slotwise check`")
            timings.append(_median(n, times))
            done(timings[-1])
    return timings


def _median(n: int, times: list[dict[str, float]]) -> BatchTiming:
    """Of one batch: the medians of each part need not add up to the whole's."""
    batch = sorted(times, key=lambda one: one["total_ms"])[(len(times) - 1) // 2]
    total, decode, model = batch["total_ms"], batch["decode_ms"], batch["inference_ms"]
    return BatchTiming(n, len(times), total, decode, model, max(0.0, total - decode - model))


def environment(profile: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """The environment of the workers of a server that is started with this profile and these overrides (`--set`)."""
    return load_profile(profile, overrides).environment(overrides)
