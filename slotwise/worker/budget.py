"""Limit the time and memory that one batch may cost.

The response timeout is cut into quarters, counted from the moment the batch is there. In the first, requests are decoded. Until
the end of the second, calls of the model are started, so time that decoding leaves is the model's. Until the end of the third,
outputs are encoded. The last quarter is the server's.

    t0 ------ decode_until ------ predict_until ------ encode_until ------ the server ends the worker

No decoder can be stopped midway. So what a body will cost is estimated before it is decoded, and the cheapest bodies are let
in first. A request within its share (the budget divided by the requests) is never refused for what others sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DECODE_MEMORY_BYTES = 1 << 30  # for all bodies that are being decoded at one moment


@dataclass(frozen=True)
class Cost:
    """What decoding one body will take, as estimated before anything of it is decoded.

    decode_ms: milliseconds of one thread. memory_bytes: the most memory in use at any moment.
    """

    decode_ms: float
    memory_bytes: int


def total(costs: Sequence[object]) -> Cost | None:
    """The cost of bodies that are decoded one after the other; None where no estimate makes sense.

    Their times are added, and their memory is that of the largest. What is no Cost of sensible numbers is left out.
    """
    known = [cost for cost in costs if isinstance(cost, Cost) and _sensible(cost.decode_ms) and _sensible(cost.memory_bytes)]
    return Cost(sum(cost.decode_ms for cost in known), max(cost.memory_bytes for cost in known)) if known else None


def so_far(efforts: Sequence[float], owners: Sequence[int] | None) -> Sequence[float]:
    """What each one's owner has asked for up to this one, its smallest first. In this order nobody waits for who asks for more.

    owners: None where each has an owner of its own.
    """
    if owners is None:
        return efforts
    asked: dict[int, float] = {}
    sums = [0.0] * len(efforts)
    for i in sorted(range(len(efforts)), key=efforts.__getitem__):
        sums[i] = asked[owners[i]] = asked.get(owners[i], 0.0) + efforts[i]
    return sums


def _sensible(number: object) -> bool:
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
        """Whether it is too late to start anything. until: decode_until, predict_until or encode_until."""
        return self.clock() >= until

    def admit(self, costs: Sequence[Cost | None], owners: Sequence[int] | None = None) -> list[bool]:
        """Whether each request may be decoded: the cheapest first, until the budget is spent. Without an estimate it may.

        owners: of the requests, where one has several (so_far).
        """
        turns = so_far([cost.decode_ms if cost else 0.0 for cost in costs], owners)
        admitted = [True] * len(costs)
        left_ms = self.decode_ms * self.threads
        known = [(turns[i], cost.decode_ms, i, cost) for i, cost in enumerate(costs) if cost is not None]
        for _, ms, i, cost in sorted(known, key=lambda entry: entry[:3]):
            fits = ms <= min(left_ms, self.decode_ms) and cost.memory_bytes <= DECODE_MEMORY_BYTES
            admitted[i] = fits
            left_ms -= ms if fits else 0.0
        return admitted

    def heavy(self, cost: Cost | None) -> bool:
        """Whether a body needs so much memory that it is decoded alone."""
        return cost is not None and cost.memory_bytes > DECODE_MEMORY_BYTES / self.threads
