"""A stranger's metrics, held back until the attempt in which they were counted has succeeded.

TorchServe's worker prints a metric when it is added, through whichever object; MMS's collects them and prints them when the
batch is answered. Both name requests by their slots.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from slotwise.worker.slot_errors import text


class HeldMetrics:
    """One attempt after the other: `begin`, then `keep` or `drop`; `end` when the batch is done. This one holds nothing."""

    def begin(self, raw: Any, ids: dict[int, Any]) -> None:
        """An attempt begins. ids: of its requests."""

    def keep(self, raw: Any) -> None:
        """It succeeded: let its metrics go."""

    def drop(self, raw: Any) -> None:
        """It failed: forget them."""

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """The batch is done, its requests have these ids."""


class TorchServeMetrics(HeldMetrics):
    """Holds back what TorchServe's metrics would print. One a worker: it replaces the method that prints."""

    def __init__(self, kind: Any, metrics: Any) -> None:
        self.metrics, self.plain = metrics, kind.emit_metrics
        self.lines: list[tuple[Any, ...]] | None = None

        def emit(metric: Any, *what: Any, **named: Any) -> None:
            if self.lines is None:
                self.plain(metric, *what, **named)
            else:
                self.lines.append((metric, what, named))

        kind.emit_metrics = emit

    def begin(self, raw: Any, ids: dict[int, Any]) -> None:
        """Hold from here on."""
        self.lines = []
        self.end(raw, ids)

    def keep(self, raw: Any) -> None:
        """Print what was held."""
        lines, self.lines = self.lines or [], None
        for metric, what, named in lines:
            self.plain(metric, *what, **named)

    def drop(self, raw: Any) -> None:
        """Print nothing of it."""
        self.lines = None

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """The ids of the whole batch hold again, and the server's metrics are in their place, whatever theirs has put there."""
        raw.metrics, self.metrics.request_ids = self.metrics, ids


class MmsMetrics(HeldMetrics):
    """Gives every attempt a store of its own, and adds it to the batch's where the attempt succeeds."""

    def __init__(self) -> None:
        self.batch: Any = None

    def begin(self, raw: Any, ids: dict[int, Any]) -> None:
        """Count into a store of the attempt's."""
        self.batch = self.batch or raw.metrics
        raw.metrics = type(self.batch)(ids, self.batch.model_name)

    def keep(self, raw: Any) -> None:
        """Add the attempt's store to the batch's. A value is a number from here on, not an object of theirs."""
        for key, counted in raw.metrics.cache.items():
            if key in self.batch.cache:
                self.batch.cache[key].update(_number(counted.value))
            else:
                self.batch.cache[key] = metric = copy.copy(counted)
                metric.value = _number(counted.value)
                self.batch.store.append(metric)

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """What MMS prints is the batch's store."""
        if self.batch is not None:
            raw.metrics, self.batch = self.batch, None


def _number(value: Any) -> Any:
    """A metric's value; a text where it is no number."""
    if type(value) is int or type(value) is float:
        return value
    try:
        return float(value)
    except Exception:
        return text(value)


def metrics_of(raw: Any, server: str) -> HeldMetrics:
    """What holds this server's metrics back."""
    if isinstance(raw.metrics, HeldMetrics):
        return raw.metrics
    if server == "mms":
        return MmsMetrics()
    module: Any = sys.modules.get("ts.metrics.caching_metric")
    kind = getattr(module, "CachingMetric", None)
    return HeldMetrics() if kind is None or raw.metrics is None else TorchServeMetrics(kind, raw.metrics)
