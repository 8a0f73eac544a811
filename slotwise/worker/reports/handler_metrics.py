"""Collect an author's own numbers until the host exports them, after every batch."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_VALUES = 1000  # kept between two batches; of more the oldest are dropped


@dataclass(frozen=True)
class MetricValue:
    """One number. unit: "ms", "%" or "" (a count)."""

    name: str
    value: float
    unit: str


class HandlerMetrics:
    """What a handler counts and times. Every method may be called in any thread, and none of them raises.

    A value that is no finite number is left out.
    """

    def __init__(self) -> None:
        self._values: deque[MetricValue] = deque(maxlen=MOST_VALUES)

    def count(self, name: str, value: float = 1) -> None:
        """Count something, for example tokens or cache hits."""
        self.record(name, value, "")

    def time(self, name: str, ms: float) -> None:
        """Record how long something took, in milliseconds."""
        self.record(name, ms, "ms")

    def record(self, name: str, value: float, unit: str) -> None:
        """Record one number. unit: "ms", "%" or "" (a count)."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return
        if math.isfinite(number):
            self._values.append(MetricValue(prometheus_name(name), number, unit))

    @contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Within, what is recorded is forgotten at the end: a row is asked again, and counted once."""
        values = list(self._values)
        try:
            yield
        finally:
            self._values.clear()
            self._values.extend(values)

    def take(self) -> list[MetricValue]:
        """Remove and return everything recorded since the last call."""
        values = []
        while self._values:
            values.append(self._values.popleft())
        return values


def prometheus_name(name: object) -> str:
    """The name as Prometheus accepts it: letters, digits and underscores, not beginning with a digit."""
    allowed = re.sub(r"[^a-zA-Z0-9_]", "_", str(name))[:100]
    return f"_{allowed}" if not allowed or allowed[0].isdigit() else allowed
