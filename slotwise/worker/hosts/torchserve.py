"""Make TorchServe's worker log less."""

from __future__ import annotations

import logging
from typing import Any

from slotwise.worker.hosts.context import ServerContext
from slotwise.worker.hosts.telemetry import RateLimiter


def quieten(context: ServerContext) -> None:
    """Once in a worker: drop one of the two lines that TorchServe writes for every batch, and limit the rate of the other.

    The first only says that a batch arrived. The other is the metric PredictionTime.
    """
    logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("Backend received inference at"))
    metrics, limiter = context.raw.metrics, RateLimiter()
    plain = getattr(metrics, "add_time", None)
    if plain is None:
        return

    def add_time(name: str, *rest: Any, **named: Any) -> None:
        if name != "PredictionTime" or limiter.due():
            plain(name, *rest, **named)

    metrics.add_time = add_time
