"""What only TorchServe's worker needs."""

from __future__ import annotations

import logging
from typing import Any

from slotwise.worker.hosts.context import ServerContext
from slotwise.worker.hosts.telemetry import RateLimiter


def quieten(context: ServerContext) -> None:
    """Once in a worker of TorchServe: of the two lines that it writes for every batch one is left out, one comes at a pace."""
    logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("Backend received inference at"))
    metrics, pace = context.raw.metrics, RateLimiter()
    plain = getattr(metrics, "add_time", None)
    if plain is None:
        return

    def add_time(name: str, *rest: Any, **named: Any) -> None:
        if name != "PredictionTime" or pace.due():
            plain(name, *rest, **named)

    metrics.add_time = add_time
