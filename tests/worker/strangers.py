"""Contexts of both servers' own classes, and batches through a guard, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mms.context
import ts
import ts.context
from mms.metrics.metrics_store import MetricsStore
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.held_metrics import HeldMetrics

METRICS = Path(ts.__file__).parent / "configs" / "metrics.yaml"


def context(kind: str, headers: Sequence[dict[str, Any]]) -> Any:
    """What the server hands to a handler with a batch of these headers."""
    manifest = {"model": {"modelName": "theirs", "handler": "theirs.py"}}
    ids = {i: f"id-{i}" for i in range(len(headers))}
    if kind == "mms":
        raw = mms.context.Context("theirs", ".", manifest, 8, None, "1.1.11")
        raw.request_processor = [mms.context.RequestProcessor(dict(one)) for one in headers]
        raw.metrics = MetricsStore(ids, "theirs")
    else:
        metrics = MetricsCacheYamlImpl(str(METRICS))
        metrics.initialize_cache()
        metrics.model_name, metrics.request_ids = "theirs", ids
        raw = ts.context.Context("theirs", ".", manifest, 8, None, "0.12.0", True, metrics, {})
        raw.request_processor = [ts.context.RequestProcessor(dict(one)) for one in headers]
    raw.request_ids = ids
    return raw


@dataclass(frozen=True)
class Slot:
    """What one client gets."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """The body parsed."""
        return json.loads(self.body)


def guard(theirs: Callable[[Any, Any], Any], **terms: Any) -> Guard:
    """A guard around a handler, for contexts whose metrics nobody looks at."""
    return Guard(theirs, terms.pop("held", HeldMetrics()), terms.pop("bad_input", ()), **terms)


def ask(
    guarded: Guard, bodies: Sequence[Any], kind: str = "torchserve", headers: Sequence[dict[str, Any]] = (), raw: Any = None
) -> list[Slot]:
    """One batch; a body that is a dict is a row of its own."""
    raw = raw or context(kind, headers or [{}] * len(bodies))
    rows = [body if isinstance(body, dict) else {"body": body} for body in bodies]
    answers = guarded.answer(rows, raw)
    assert len(answers) == len(bodies)
    assert raw.request_ids == {i: f"id-{i}" for i in range(len(bodies))}
    return [
        Slot(raw.get_response_status(i)[0], bytes(answer), dict(raw.get_response_headers(i)))
        for i, answer in enumerate(answers)
    ]
