"""Count the copies of requests that are sent beyond the first, in a registry that the front end's /metrics includes."""

from __future__ import annotations

from collections.abc import Container

from prometheus_client import CollectorRegistry, Counter

from slotwise.backends.metric_labels import keep_labels


class CopyMetrics:
    """Second tries, hedges, requests that go alone, and switches to another server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"slotwise_{name}", text, ["model"], registry=registry)

        self.retries = counter("retries", "Requests sent a second time.")
        self.hedges = counter("hedges", "Further copies of requests whose answer was late.")
        self.hedge_wins = counter("hedge_wins", "Hedges that were answered first.")
        self.hedge_saved = counter(
            "hedge_saved_seconds",
            "What was left until the deadline when a hedge was answered first: so long the client might have waited on.",
        )
        self.alone = counter("alone", "Requests tried with nothing else in their batch.")
        self.swaps = Counter("slotwise_swaps", "Switches to another server.", registry=registry)

    def hedge_won(self, model: str, saved_s: float) -> None:
        """A hedge was answered before the copy that was sent first."""
        self.hedge_wins.labels(model).inc()
        self.hedge_saved.labels(model).inc(max(saved_s, 0))

    def keep(self, models: Container[str]) -> None:
        """Forget the labels of every other model."""
        keep_labels((self.retries, self.hedges, self.hedge_wins, self.hedge_saved, self.alone), models)
