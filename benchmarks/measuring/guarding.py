"""What a guard adds to a batch: around a handler that does nothing, offline, on TorchServe's own context."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

SLOTS = 8
HEADERS = {"Content-Type": "application/octet-stream", "Host": "127.0.0.1:8080", "Accept": "*/*", "explain": "False"}
BODIES = {"1 KiB": 1 << 10, "100 KiB": 100 << 10}


def measure(rounds: int, batches: int = 2000) -> dict[str, Any]:
    """Microseconds of processor time for a batch of 8, without a guard and with one, in turns."""
    import ts
    from ts.context import Context, RequestProcessor
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    from slotwise.worker.guard.batches import Guard
    from slotwise.worker.guard.held_metrics import metrics_of

    metrics = MetricsCacheYamlImpl(str(ts.__path__[0]) + "/configs/metrics.yaml")
    metrics.initialize_cache()
    raw = Context("empty", ".", {}, SLOTS, None, "0.12.0", True, metrics, {})
    raw.request_ids = {i: f"0b7c3ad2-8a51-4c1e-9f6e-{i:012}" for i in range(SLOTS)}
    guard = Guard(empty, metrics_of(raw, "torchserve"))
    rows = []
    for size, length in BODIES.items():
        found: dict[str, list[float]] = {"bare": [], "guarded": []}
        for turn in range(2 * rounds):
            system, handle = (("bare", empty), ("guarded", guard.answer))[turn % 2]
            sent = [([{"body": bytearray(length)} for _ in range(SLOTS)], processors(RequestProcessor)) for _ in range(64)]
            found[system].append(round(timed(handle, sent, raw, batches), 2))
        rows += [
            {"body": size, "system": name, "median_us": statistics.median(each), "rounds": each} for name, each in found.items()
        ]
    return {"slots": SLOTS, "rows": rows}


def empty(data: Any, context: Any) -> list[bytes]:
    """The handler that does nothing."""
    return [b"{}"] * len(data)


def processors(kind: Callable[[dict[str, str]], Any]) -> list[Any]:
    """What TorchServe makes of a batch's headers."""
    return [kind(dict(HEADERS)) for _ in range(SLOTS)]


def timed(handle: Callable[[Any, Any], Any], sent: list[Any], raw: Any, batches: int) -> float:
    """Microseconds of processor time a batch: what else runs on the machine does not count."""
    started = time.thread_time()
    for turn in range(batches):
        raw.request_processor = sent[turn % len(sent)][1]
        handle(sent[turn % len(sent)][0], raw)
    return (time.thread_time() - started) / batches * 1e6
