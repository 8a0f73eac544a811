"""Labels of Prometheus metrics are names of models that are really there: others would fill the memory."""

from __future__ import annotations

from collections.abc import Container, Iterable

from prometheus_client import Counter, Gauge, Histogram

OTHER = "other"  # the label of a model that is not (yet) known


def keep_labels(metrics: Iterable[Counter | Gauge | Histogram], models: Container[str]) -> None:
    """Forget the labels of every other model."""
    for metric in metrics:
        for model in {sample.labels["model"] for family in metric.collect() for sample in family.samples}:
            if model not in models:
                metric.remove_by_labels({"model": model})
