"""Make TorchServe's worker log less."""

from __future__ import annotations

import logging
import sys
from typing import Any

from slotwise.worker.hosts.java.context import ServerContext
from slotwise.worker.reports.telemetry import RateLimiter

PROTOCOL = "ts.protocol.otf_message_handler"


def quieten(context: ServerContext) -> None:
    """Once in a worker: drop one of the two lines that TorchServe writes for every batch, and limit the rate of the other.

    The first only says that a batch arrived. The other is the metric PredictionTime.
    """
    protocol: Any = sys.modules.get(PROTOCOL)
    if protocol is not None:  # a logger of its own costs less than a filter: the line is never made
        protocol.logging = logging.getLogger(PROTOCOL)
        protocol.logging.setLevel(logging.WARNING)
    metrics, limiter = context.raw.metrics, RateLimiter()
    plain = getattr(metrics, "add_time", None)
    if plain is None:
        return

    def add_time(name: str, *rest: Any, **named: Any) -> None:
        if name != "PredictionTime" or limiter.due():
            plain(name, *rest, **named)

    metrics.add_time = add_time
