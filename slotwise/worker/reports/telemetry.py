"""Report what a worker runs on when it starts, and numbers of its batches through the server's metrics."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from slotwise.worker.batch import Batch
from slotwise.worker.environment.digests import content
from slotwise.worker.handler import BatchHandler
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.reports.handler_metrics import HandlerMetrics

logger = logging.getLogger(__name__)


class WorkerContext(Protocol):
    """What is told of a worker, and who takes its numbers."""

    @property
    def batch_size(self) -> int:
        """The most requests of one batch."""

    @property
    def model_name(self) -> str:
        """The model's name."""

    @property
    def model_version(self) -> str:
        """The archive's version."""

    @property
    def model_dir(self) -> Path:
        """The folder of the extracted archive."""

    def metric(self, name: str, value: float, unit: str = "", code: int | None = None) -> None:
        """Take one number. unit: "ms", "%" or "" (a count). code: an HTTP status, as a count's dimension."""


NOT_SAID = "not said"  # of an author's own engine: it need not do what the profile asks for


def write(context: WorkerContext, pipeline: Pipeline, notes: Mapping[str, str]) -> None:
    """Write `$SLOTWISE_STATE/workers/PID.json` for `slotwise describe`: what this worker really runs with.

    notes: the headers of every answer. Without SLOTWISE_STATE the facts stand in the log only.
    """
    settings, engine = pipeline.settings, pipeline.handler.engine
    facts = {
        "model": context.model_name,
        "version": context.model_version,
        "profile": settings.profile,
        "engine": getattr(engine, "name", type(engine).__name__),
        "precision": getattr(engine, "precision", NOT_SAID),
        "device": getattr(engine, "device", settings.device),
        "threads": settings.threads,
        "padding": settings.padding,
        "rows": pipeline.verdict.sentence(),
        "batch_size": settings.batch_size,
        "archive": content(context.model_dir),
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
        logger.warning("the report of this worker cannot be written below %s", state, exc_info=True)


# How often gauges are reported. A metric is a line of text that the server parses, and its five gauges take the server longer
# than a small model's whole batch.
PERIOD_S = 0.1


GAUGES = (("BatchFill", "%"), ("PaddingShare", "%"), ("DecodeTime", "ms"), ("InferenceTime", "ms"), ("EncodeTime", "ms"))


class RateLimiter:
    """Allows something once every PERIOD_S seconds."""

    def __init__(self) -> None:
        self.next_at = 0.0

    def due(self) -> bool:
        """Whether it is allowed now; if so, it is not allowed again for a while."""
        now = time.monotonic()
        if now < self.next_at:
            return False
        self.next_at = now + PERIOD_S
        return True


class Meter:
    """Reports what batches cost through the host's own metrics.

    Counts are reported at once. Gauges are reported every PERIOD_S, as means over the batches since the last report.
    Nothing is raised: the answers are there, and they count more than the numbers.
    """

    def __init__(self) -> None:
        self.limiter = RateLimiter()
        self.values: list[tuple[float, ...]] = []  # a batch's GAUGES each
        self.failed: set[str] = set()

    def measure(self, context: WorkerContext, batch: Batch, handler: BatchHandler) -> None:
        """Report one batch, and the author's own numbers recorded in it."""
        try:
            self._measure(context, batch)
            self._measure_own(context, handler)
        except Exception as error:  # the same for every batch: the log has it once
            if type(error).__name__ not in self.failed:
                self.failed.add(type(error).__name__)
                logger.exception("a batch could not be measured")

    def _measure(self, context: WorkerContext, batch: Batch) -> None:
        tally = batch.tally
        fill = 100 * batch.n / context.batch_size
        padding = 100 * tally.padding / tally.rows if tally.rows else 0.0
        encode_ms = max(0.0, batch.total_ms - batch.decode_ms - batch.inference_ms)
        self.values.append((fill, padding, batch.decode_ms, batch.inference_ms, encode_ms))
        if self.limiter.due():
            for (name, unit), values in zip(GAUGES, zip(*self.values, strict=True), strict=True):
                context.metric(name, sum(values) / len(values), unit)
            self.values = []
        if tally.cuts:
            context.metric("Bisections", tally.cuts)
        if errors := [answer.status for answer in batch.answers if answer.status != 200]:
            for code, slots in Counter(errors).items():
                context.metric("SlotErrors", slots, code=code)

    def _measure_own(self, context: WorkerContext, handler: BatchHandler) -> None:
        own: object = handler.metrics
        if not isinstance(own, HandlerMetrics):
            raise TypeError(f"the handler's metrics is a {type(own).__name__} of its own: nothing in it is exported")
        for metric in own.take():
            context.metric(metric.name, metric.value, metric.unit)
