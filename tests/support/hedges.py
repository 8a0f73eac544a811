"""Time that a test moves, and gateways that know when an answer is late."""

from __future__ import annotations

import pytest

from slotwise.backends.remote import hedging
from slotwise.backends.remote.hedging import RANK_EVERY
from tests.frontend.conftest import Front, MakeFront
from tests.frontend.standin import StandIn


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def hedged(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, server: StandIn, **options: object) -> Front:
    """A front that has seen enough answers to know when one is late: after 500 ms, also on a busy machine."""
    front = await make_front(server, **{"in_flight": 64, "timeout_s": 90, **options})
    monkeypatch.setattr(hedging, "LATE_AT_LEAST_S", 0.5)
    for _ in range(RANK_EVERY):
        front.backend.copies("digits").hedging.record_answer(0.01)
    return front


def counted(front: Front, name: str) -> float:
    """One of the model's counters."""
    return front.gateway.metrics.registry.get_sample_value(f"slotwise_{name}_total", {"model": "digits"}) or 0.0
