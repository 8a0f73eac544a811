"""What a worker says about itself: once when it starts, and in numbers after every batch."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.worker.batch import Batch
from slotwise.worker.handler_metrics import HandlerMetrics
from slotwise.worker.hosts.context import ServerContext
from slotwise.worker.settings import Settings

logger = logging.getLogger(__name__)


def write(context: ServerContext, settings: Settings, engine: Any, notes: Mapping[str, str]) -> None:
    """Leave `$SLOTWISE_STATE/workers/PID.json` for `slotwise describe`: what this worker really got."""
    facts = {
        "model": context.model_name,
        "version": context.model_version,
        "profile": settings.profile,
        "engine": getattr(engine, "name", type(engine).__name__),
        "precision": getattr(engine, "precision", settings.precision),
        "device": getattr(engine, "device", settings.device),
        "threads": settings.threads,
        "padding": settings.padding,
        "batch_size": settings.batch_size,
        "notes": dict(notes),
    }
    logger.info("slotwise worker: %s", json.dumps(facts))
    state = os.environ.get("SLOTWISE_STATE")
    if not state:
        return
    try:
        folder = Path(state) / "workers"
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{os.getpid()}.tmp"
        partial.write_text(json.dumps(facts), "utf-8")
        partial.rename(folder / f"{os.getpid()}.json")
    except OSError:
        logger.warning("no report could be left in %s", state, exc_info=True)


# Of gauges. A metric is a line of text that the server parses, and a batch of a small model takes less time than its five.
PERIOD_S = 0.1


class RateLimiter:
    """Says yes at most once in PERIOD_S."""

    def __init__(self) -> None:
        self.next = 0.0

    def due(self) -> bool:
        """Whether it is time again."""
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + PERIOD_S
        return True


class Meter:
    """What batches cost, through the server's own metrics: counts at once, gauges at a pace, as means since the last time."""

    def __init__(self) -> None:
        self.pace = RateLimiter()
        self.seen: dict[tuple[str, str], list[float]] = {}

    def measure(self, context: ServerContext, batch: Batch, own: HandlerMetrics) -> None:
        """Count one batch in, and what the handler's author measured in it."""
        tally = batch.tally
        gauges = {
            ("BatchFill", "%"): 100 * batch.n / context.batch_size,
            ("PaddingShare", "%"): 100 * tally.padding / tally.rows if tally.rows else 0.0,
            ("DecodeTime", "ms"): batch.decode_ms,
            ("InferenceTime", "ms"): batch.inference_ms,
            ("EncodeTime", "ms"): max(0.0, batch.total_ms - batch.decode_ms - batch.inference_ms),
        }
        for gauge, value in gauges.items():
            self.seen.setdefault(gauge, []).append(value)
        if self.pace.due():
            for (name, unit), values in self.seen.items():
                context.metric(name, sum(values) / len(values), unit)
            self.seen = {}
        if tally.cuts:
            context.metric("Bisections", tally.cuts)
        for code, slots in Counter(answer.status for answer in batch.answers if answer.status != 200).items():
            context.metric("SlotErrors", slots, code=code)
        for measured in own.take():
            context.metric(measured.name, measured.value, measured.unit)
