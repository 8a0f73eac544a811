"""What a batch of n costs, learned from the batches that there were: a + b n seconds, by least squares.

What was long ago counts less: a batch half as much as one that came HALF_LIFE batches later. One that takes far longer than
it should (it hung, or its body lied) counts as one that took a bit longer; where all of them do, that is believed soon.
Who measures uses the event loop's clock, which nobody sets back.
"""

from __future__ import annotations

import math

HALF_LIFE = 32
ENOUGH = 8  # batches, before anything is said
MOST, TICK_S = 4.0, 0.01  # times as long as expected: a batch counts as no more; but for what a clock may be off
LEAST_S = 1e-6  # of a batch: a clock that counts milliseconds sees none pass, and what costs nothing cannot be divided by
PRIOR = 0.01  # where all batches were of one size nobody knows a from b: then half of it is taken for each
DOUBT = 2.0  # standard deviations


class BatchCost:
    """The costs of one model's batches. batches: that it was learned from."""

    def __init__(self) -> None:
        self.batches = 0
        self.each_s = self.request_s = 0.0  # a, b
        self._weight = self._n = self._nn = self._t = self._nt = self._miss = 0.0
        self._keep = 0.5 ** (1 / HALF_LIFE)

    @property
    def known(self) -> bool:
        """Whether there were enough batches."""
        return self.batches >= ENOUGH

    def learn(self, n: int, took_s: float) -> None:
        """A batch of n has taken so long."""
        keep = self._keep
        took_s = max(took_s, LEAST_S)
        if self.batches >= ENOUGH:
            expected_s = self.each_s + self.request_s * n
            took_s = min(took_s, max(TICK_S, MOST * expected_s))
            self._miss = keep * self._miss + (took_s - expected_s) ** 2
        self.batches += 1
        self._weight = weight = keep * self._weight + 1
        self._n = sum_n = keep * self._n + n
        self._t = sum_s = keep * self._t + took_s
        self._nn = keep * self._nn + n * n
        self._nt = keep * self._nt + n * took_s
        mean_n, mean_s = sum_n / weight, sum_s / weight
        mean_nn, each = mean_n * mean_n, mean_s / mean_n
        slope = (self._nt / weight - mean_n * mean_s + PRIOR * mean_nn * each / 2) / (
            self._nn / weight - mean_nn + PRIOR * mean_nn
        )
        self.request_s = request_s = min(max(slope, 0.0), each)
        self.each_s = mean_s - request_s * mean_n

    @property
    def spread_s(self) -> float:
        """How far batches are from that: their standard deviation."""
        return math.sqrt(self._miss / self._weight) if self._weight else 0.0

    def said(self) -> dict[str, float]:
        """What is known, in ms, for a description; {}: too little."""
        if not self.known:
            return {}
        parts = {"batch_ms": self.each_s, "request_ms": self.request_s, "spread_ms": self.spread_s}
        return {**{name: round(seconds * 1000, 4) for name, seconds in parts.items()}, "batches": self.batches}

    def of(self, n: int) -> float:
        """Seconds for a batch of n."""
        return self.each_s + self.request_s * n

    def least(self, n: int) -> float:
        """Seconds for a batch of n at least, by what is known: 0 where that is nothing."""
        return max(0.0, self.of(n) - DOUBT * self.spread_s) if self.known else 0.0
