"""What one batch may cost, and whose turn it is.

A batch has half of the response timeout to start work in: a quarter to decode, the next to predict. The third quarter is for
encoding what was predicted; the last is the server's. The quarters are counted from the moment the batch is there, so time that
decoding leaves is the model's.

    t0 ------ decode_until ------ predict_until ------ encode_until ------ the server ends the worker

No decoder can be stopped midway. So what a body will cost is estimated before it is decoded, and the cheapest are let in first:
a request within its share (the budget divided by the requests) is never refused for what others sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DECODE_MEMORY_BYTES = 1 << 30  # for all bodies that are being decoded at one moment


@dataclass(frozen=True)
class Cost:
    """What decoding one body will take, estimated before anything of it is decoded."""

    decode_ms: float
    memory_bytes: int


def total(costs: Sequence[Any]) -> Cost | None:
    """The cost of bodies that are decoded one after the other. What is no estimate, or makes no sense, is left out."""
    known = [cost for cost in costs if isinstance(cost, Cost) and _sensible(cost.decode_ms) and _sensible(cost.memory_bytes)]
    return Cost(sum(cost.decode_ms for cost in known), max(cost.memory_bytes for cost in known)) if known else None


def _sensible(number: Any) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number >= 0


class Budget:
    """The time and memory of one batch of n requests.

    timeout_s: after this the server ends the worker. decode_ms: how long a batch may decode, by the estimates.
    threads: how many bodies are decoded side by side.
    """

    def __init__(
        self, n: int, timeout_s: float, decode_ms: float, threads: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.started = clock()
        self.decode_until = self.started + timeout_s / 4
        self.predict_until = self.started + timeout_s / 2
        self.encode_until = self.started + timeout_s * 3 / 4
        self.decode_share_s = timeout_s / 4 / max(1, n)
        self.decode_ms, self.threads = decode_ms, max(1, threads)

    def over(self, until: float) -> bool:
        """Whether nothing may be started any more: `until` is decode_until, predict_until or encode_until."""
        return self.clock() >= until

    def admit(self, costs: Sequence[Cost | None]) -> list[bool]:
        """Which requests may be decoded, cheapest first until the budget is spent. What has no estimate is let in."""
        admitted = [True] * len(costs)
        left_ms = self.decode_ms * self.threads
        known = [(cost.decode_ms, i, cost) for i, cost in enumerate(costs) if cost is not None]
        for ms, i, cost in sorted(known, key=lambda entry: entry[:2]):
            fits = ms <= min(left_ms, self.decode_ms) and cost.memory_bytes <= DECODE_MEMORY_BYTES
            admitted[i] = fits
            left_ms -= ms if fits else 0.0
        return admitted

    def heavy(self, cost: Cost | None) -> bool:
        """Whether a body needs so much memory that it is decoded alone."""
        return cost is not None and cost.memory_bytes > DECODE_MEMORY_BYTES / self.threads
