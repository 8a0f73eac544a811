"""Stand in for TorchServe's metrics where there is no TorchServe."""

from __future__ import annotations

import math
from typing import Any

from slotwise.worker.guard.held_metrics import HeldMetrics

UNITS = {"ms": ("ms", 1.0), "s": ("ms", 1000.0), "percent": ("%", 1.0), "%": ("%", 1.0)}
MOST_VALUES = 1000  # kept until the host takes them


class NamedStandIn:
    """One metric by its name."""

    def __init__(self, metrics: StandInMetrics, name: str, unit: str) -> None:
        self.metrics, self.name, self.unit = metrics, name, unit

    def add_or_update(self, value: Any, *dimensions: Any, **named: Any) -> None:
        """Add one number."""
        self.metrics.add_metric(self.name, value, self.unit)

    update = add_or_update


class StandInMetrics(HeldMetrics):
    """Takes the numbers of theirs, and forgets those of an attempt that failed."""

    def __init__(self) -> None:
        self.values: list[list[Any]] = []
        self.request_ids: dict[int, Any] = {}
        self.before = 0

    def add_metric(self, name: str, value: Any, unit: str = "", *more: Any, **named: Any) -> None:
        """Add one number; one that is none is left out."""
        unit, factor = UNITS.get(str(unit).lower(), ("", 1.0))
        try:
            number = float(value) * factor
        except (TypeError, ValueError, OverflowError):
            return
        if math.isfinite(number):
            self.take(str(name), number, unit)

    def take(self, name: str, number: float, unit: str) -> None:
        """Keep one number for the host."""
        if len(self.values) < MOST_VALUES:
            self.values.append([name, number, unit, None])

    def add_counter(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """Add a count."""
        self.add_metric(name, value)

    def add_time(self, name: str, value: Any, idx: Any = None, unit: str = "ms", *more: Any, **named: Any) -> None:
        """Add a time."""
        self.add_metric(name, value, unit)

    def add_size(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """Add a size."""
        self.add_metric(name, value)

    def add_percent(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """Add a share."""
        self.add_metric(name, value, "percent")

    def add_error(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """An error is a text, no number."""

    def get_metric(self, metric_name: str, *more: Any, **named: Any) -> NamedStandIn:
        """The metric of that name."""
        return NamedStandIn(self, metric_name, "")

    def add_metric_to_cache(self, metric_name: str, unit: str = "", *more: Any, **named: Any) -> NamedStandIn:
        """The metric of that name and unit."""
        return NamedStandIn(self, metric_name, unit)

    def begin(self, raw: Any, ids: dict[int, Any]) -> None:
        """An attempt begins."""
        self.end(raw, ids)
        self.before = len(self.values)

    def drop(self, raw: Any) -> None:
        """It failed."""
        del self.values[self.before :]

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """These are in their place again, whatever theirs has put there."""
        raw.metrics = self
