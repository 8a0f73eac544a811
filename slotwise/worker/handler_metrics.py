"""An author's own numbers, kept until the host takes them to wherever its server's metrics go."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

KEPT = 1000  # numbers between two batches; older ones are dropped


@dataclass(frozen=True)
class MetricValue:
    """One number. unit: "ms" or "" (a count)."""

    name: str
    value: float
    unit: str


class HandlerMetrics:
    """What a handler counts and times. Safe in any thread; nothing raises, and a number that is not finite is left out."""

    def __init__(self) -> None:
        self._kept: deque[MetricValue] = deque(maxlen=KEPT)

    def count(self, name: str, value: float = 1) -> None:
        """Count something, for example tokens or cache hits."""
        self._keep(name, value, "")

    def time(self, name: str, ms: float) -> None:
        """Say how long something took, in milliseconds."""
        self._keep(name, ms, "ms")

    def take(self) -> list[MetricValue]:
        """Everything since the last time."""
        taken = []
        while self._kept:
            taken.append(self._kept.popleft())
        return taken

    def _keep(self, name: str, value: float, unit: str) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return
        if math.isfinite(number):
            self._kept.append(MetricValue(prometheus_name(name), number, unit))


def prometheus_name(name: object) -> str:
    """The name as Prometheus accepts it: letters, digits and underscores, not beginning with a digit."""
    said = re.sub(r"[^a-zA-Z0-9_]", "_", str(name))[:100]
    return f"_{said}" if not said or said[0].isdigit() else said
