"""Judge a result by the target: does it meet it, and which of two results is better?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slotwise.bench.load import LoadResult

LOST_REQUESTS = -1e9  # the score where requests were lost: worse than slow answers
TOO_SLOW = -1e6  # the score of a p99 just over the target, below every score of a setting that meets it

Objective = Literal["throughput", "latency"]


@dataclass(frozen=True)
class Goal:
    """The target: p99 within slo_p99_ms and no lost request, with so many clients. objective: what to make best within it."""

    slo_p99_ms: float
    clients: int = 64
    objective: Objective = "throughput"

    def met(self, result: LoadResult) -> bool:
        """Whether no request was lost and p99 is within the target."""
        return not result.lost and 0 < result.p99_ms <= self.slo_p99_ms

    def score(self, result: LoadResult) -> float:
        """A number to compare results by, larger is better. Every result that misses the target is below all that meet it."""
        if result.lost or not result.p99_ms:
            return LOST_REQUESTS * (1 + result.lost / max(1, result.requests))
        if result.p99_ms > self.slo_p99_ms:
            return TOO_SLOW * result.p99_ms / self.slo_p99_ms
        return result.req_s if self.objective == "throughput" else -result.p99_ms
