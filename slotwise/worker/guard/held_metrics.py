"""A stranger's metrics, held back until the attempt in which they were counted has succeeded.

TorchServe's worker prints a metric when it is added, through whichever object; MMS's collects them and prints them when the
batch is answered. Both name requests by their slots.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from slotwise.worker.guard.stand_in_metrics import StandInMetrics


class HeldMetrics(Protocol):
    """One attempt after the other: `begin`, then `keep` or `drop`; `end` when the batch is done."""

    def begin(self, raw: Any, ids: dict[int, Any] | None) -> None:
        """An attempt begins. ids: of its requests, None where they are the batch's own."""

    def keep(self, raw: Any) -> None:
        """It succeeded: let its metrics go."""

    def drop(self, raw: Any) -> None:
        """It failed: forget them."""

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """The batch is done, its requests have these ids."""


class NoMetrics:
    """For a worker without metrics."""

    def begin(self, raw: Any, ids: dict[int, Any] | None) -> None:
        """Nothing is held."""

    def keep(self, raw: Any) -> None:
        """Nothing is held."""

    def drop(self, raw: Any) -> None:
        """Nothing is held."""

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """Nothing is held."""


class TorchServeMetrics:
    """Holds back what TorchServe's metrics would print. One a worker: it replaces the method that prints."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.plain = kind, kind.emit_metrics
        self.lines: list[tuple[Any, ...]] | None = None

        def emit(metric: Any, *what: Any, **named: Any) -> None:
            if self.lines is None:
                self.plain(metric, *what, **named)
            else:
                self.lines.append((metric, what, named))

        kind.emit_metrics = emit

    def begin(self, raw: Any, ids: dict[int, Any] | None) -> None:
        """Hold from here on."""
        self.lines = []
        if ids is not None:
            raw.metrics.request_ids = ids

    def keep(self, raw: Any) -> None:
        """Print what was held."""
        lines, self.lines = self.lines or [], None
        for metric, what, named in lines:
            self.plain(metric, *what, **named)

    def drop(self, raw: Any) -> None:
        """Print nothing of it."""
        self.lines = None

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """The ids of the whole batch hold again."""
        raw.metrics.request_ids = ids


class MmsMetrics:
    """Gives every attempt but the first a store of its own, and adds it to the batch's where the attempt succeeds."""

    def __init__(self) -> None:
        self.batch: Any = None

    def begin(self, raw: Any, ids: dict[int, Any] | None) -> None:
        """The first attempt counts into the batch's own store: MMS has just made it."""
        if ids is None:
            self.batch = raw.metrics
            return
        self.batch = self.batch or raw.metrics
        raw.metrics = type(self.batch)(ids, self.batch.model_name)

    def keep(self, raw: Any) -> None:
        """Add the attempt's store to the batch's."""
        if raw.metrics is self.batch:
            return
        for key, metric in raw.metrics.cache.items():
            if key in self.batch.cache:
                self.batch.cache[key].update(metric.value)
            else:
                self.batch.cache[key] = metric
                self.batch.store.append(metric)

    def drop(self, raw: Any) -> None:
        """Only the first attempt has left something in the batch's store, and nothing was there before it."""
        if raw.metrics is self.batch:
            self.batch.store.clear()
            self.batch.cache.clear()

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """What MMS prints is the batch's store."""
        if self.batch is not None:
            raw.metrics, self.batch = self.batch, None


class Silenced:
    """Lets no metric go: what an audit counts was counted before."""

    def __init__(self, held: HeldMetrics) -> None:
        self.held = held

    def begin(self, raw: Any, ids: dict[int, Any] | None) -> None:
        """Hold, in a store of its own where there are stores."""
        self.held.begin(raw, raw.request_ids)

    def keep(self, raw: Any) -> None:
        """Forget."""
        self.held.drop(raw)

    def drop(self, raw: Any) -> None:
        """Forget."""
        self.held.drop(raw)

    def end(self, raw: Any, ids: dict[int, Any]) -> None:
        """As before."""
        self.held.end(raw, ids)


def metrics_of(raw: Any, server: str) -> HeldMetrics:
    """What holds this server's metrics back."""
    if isinstance(raw.metrics, StandInMetrics):
        return raw.metrics
    if server == "mms":
        return MmsMetrics()
    module: Any = sys.modules.get("ts.metrics.caching_metric")
    kind = getattr(module, "CachingMetric", None)
    return NoMetrics() if kind is None or raw.metrics is None else TorchServeMetrics(kind)
