"""Stand in for TorchServe's metrics where there is no TorchServe."""

from __future__ import annotations

import math
from typing import Any

from slotwise.worker.guard.held_metrics import HeldMetrics

UNITS = {"percent": "%"}
MOST_VALUES = 1000  # kept until the host takes them
MOST_LETTERS = 40  # of a unit
COUNTER, GAUGE = "counter", "gauge"  # TorchServe's MetricTypes by their values; of all but a counter the last value holds


class NamedStandIn:
    """One metric by its name."""

    def __init__(self, metrics: StandInMetrics, name: str, unit: str, metric_type: Any = None) -> None:
        self.metrics, self.name, self.unit, self.type = metrics, name, unit, metric_type

    def add_or_update(self, value: Any, *dimensions: Any, **named: Any) -> None:
        """Add one number."""
        self.metrics.add_metric(self.name, value, self.unit, metric_type=self.type)

    update = add_or_update


class StandInMetrics(HeldMetrics):
    """Takes the numbers of theirs, and forgets those of an attempt that failed."""

    def __init__(self) -> None:
        self.values: list[list[Any]] = []
        self.request_ids: dict[int, Any] = {}
        self.before = 0

    def add_metric(self, name: str, value: Any, unit: str = "", *more: Any, metric_type: Any = None, **named: Any) -> None:
        """Add one number; one that is none is left out. Without a metric_type it is a count, as on TorchServe."""
        if metric_type is None:  # behind idx and dimensions
            metric_type = more[2] if len(more) > 2 else COUNTER
        counts = getattr(metric_type, "value", metric_type) == COUNTER
        shown = "" if counts else UNITS.get(str(unit).lower(), str(unit)[:MOST_LETTERS]) or "value"
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return
        if math.isfinite(number):
            self.take(str(name), number, shown)

    def take(self, name: str, number: float, unit: str) -> None:
        """Keep one number for the host."""
        if len(self.values) < MOST_VALUES:
            self.values.append([name, number, unit, None])

    def add_counter(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """Add a count."""
        self.add_metric(name, value)

    def add_time(self, name: str, value: Any, idx: Any = None, unit: str = "ms", *more: Any, **named: Any) -> None:
        """Add a time, of which the last one holds."""
        self._add_gauge(name, value, unit, idx, *more, **named)

    def add_size(self, name: str, value: Any, idx: Any = None, unit: str = "MB", *more: Any, **named: Any) -> None:
        """Add a size, of which the last one holds."""
        self._add_gauge(name, value, unit, idx, *more, **named)

    def add_percent(self, name: str, value: Any, idx: Any = None, *more: Any, **named: Any) -> None:
        """Add a share, of which the last one holds."""
        self._add_gauge(name, value, "percent", idx, *more, **named)

    def _add_gauge(self, name: str, value: Any, unit: str, *more: Any, **named: Any) -> None:
        self.add_metric(name, value, unit, *more, **{"metric_type": None if len(more) > 2 else GAUGE, **named})

    def add_error(self, name: str, value: Any, *more: Any, **named: Any) -> None:
        """An error is a text, no number."""

    def get_metric(self, metric_name: str, metric_type: Any = None, **named: Any) -> NamedStandIn:
        """The metric of that name."""
        return NamedStandIn(self, metric_name, "", metric_type)

    def add_metric_to_cache(
        self, metric_name: str, unit: str = "", dimension_names: Any = None, metric_type: Any = None, **named: Any
    ) -> NamedStandIn:
        """The metric of that name and unit."""
        return NamedStandIn(self, metric_name, unit, metric_type)

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
