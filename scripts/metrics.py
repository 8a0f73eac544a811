"""Write docs/metrics.md from the metrics that the front, its backends and the workers really have.

python scripts/metrics.py             write the page
python scripts/metrics.py --check     exit with 1 where the page is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.frontend.metrics import GatewayMetrics
from slotwise.host.model_versions import ModelVersions
from slotwise.worker.reports.telemetry import GAUGES
from slotwise.worker.separability.audit import AUDITED, MISMATCHES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
INTRODUCTION = """\
# Metrics

Every number that Slotwise has for Prometheus, by its conventions: seconds and bytes, counters end in `_total`, a histogram has
`_bucket`, `_sum` and `_count`. The label `model` holds names of models that are there, anything else is `other`; no label holds
what a client says, so clients add no series. `k8s/prometheus/` has [rules and alerts](kubernetes.md) for them, and
`k8s/grafana/` dashboards.

This page is written by `python scripts/metrics.py`. Correct the texts in the code.
"""
UNITS = {
    "size": "requests",
    "up": "1 or 0",
    "alone": "requests",
    "killers": "requests",
    "sheds": "requests",
    "wins": "requests",
}
UNITS |= {
    "ends": "workers",
    "restarts": "times",
    "readers": "clients",
    "swaps": "times",
    "hedges": "requests",
    "retries": "requests",
}
WORKERS = {
    "BatchFill": "Requests of a batch, of its size.",
    "PaddingShare": "Rows that only pad, of those that the model ran.",
    "DecodeTime": "Decoding of a batch.",
    "InferenceTime": "All calls of the model for a batch.",
    "EncodeTime": "The rest: encoding, and making the answers.",
    "Bisections": "How often a group of rows was cut in halves, to find the one that fails.",
    "SlotErrors": "Answers of slots with an error, by status.",
}


@dataclass(frozen=True)
class Described:
    """One metric. name: as it is scraped."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str


def of_front() -> list[Described]:
    """The front's own, with every server behind."""
    return [*_of(GatewayMetrics(CollectorRegistry()).registry)]


def of_copies() -> list[Described]:
    """Where the server behind is not ours."""
    registry = CollectorRegistry()
    CopyMetrics(registry)
    return [*_of(registry)]


def of_host() -> list[Described]:
    """Our own host's."""
    registry = CollectorRegistry()
    registry.register(ModelVersions())
    return [*_of(registry)]


def of_workers() -> list[Described]:
    """What workers say of their batches, under TorchServe's kind of names."""
    units = dict(GAUGES)
    return [
        Described(name, "gauge" if name in units else "counter", units.get(name, "times"), ("ModelName", "Code"), meaning)
        for name, meaning in WORKERS.items()
    ]


def _of(registry: CollectorRegistry) -> Iterator[Described]:
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            source: Any = collector if hasattr(collector, "_labelnames") else family
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield Described(name, family.type, _unit(family.name), tuple(source._labelnames), family.documentation)


def _unit(name: str) -> str:
    last = name.rsplit("_", 1)[1]
    return UNITS.get(last, last)


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        _section("Of every front", "At `/metrics` of `slotwise gateway`, and of our own host's port for metrics.", of_front()),
        _section("Of copies", "Where the server behind is TorchServe, MMS or Triton.", of_copies()),
        _section(
            "Of our own host",
            "There, too, where models are served by `--server slotwise`; at a gateway before `--server ray`, too.",
            of_host(),
        ),
        _section(
            "Of workers",
            "Means of the last batches, ten times a second at most, and counts; with TorchServe at `/metrics/server`. An "
            "author's own numbers (`self.metrics`) stand beside them, and those of an audit: "
            f"`{AUDITED}`, answers that were made again, alone, and `{MISMATCHES}`, those of them that were not the same. "
            "TorchServe's own names are "
            "[there](leaving-torchserve.md#one-word).",
            of_workers(),
        ),
    ]
    return "\n".join(parts)


def _section(title: str, where: str, described: Iterable[Described]) -> str:
    lines = [f"## {title}", "", where, "", "| name | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for one in sorted(described, key=lambda one: one.name):
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Write or check; the exit code."""
    from written_pages import write_or_check

    pages = {PAGE: page()}
    return write_or_check(pages, str(__doc__), "python scripts/metrics.py")


if __name__ == "__main__":
    sys.exit(main())
