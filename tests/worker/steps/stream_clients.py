"""The clients of a history of streams: what each asks for, when it comes and goes, and when it reads."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from slotwise.worker.steps.streams import Stream
from tests.worker.steps.sim_engine import ADVANCE_FAULTS, PREFILL_FAULTS, STEP_FAULTS, SimItem, Whole, alone


@dataclass(eq=False)
class Client:
    """One client and what it has got. at: when it comes. leaves_at, holds: when it goes, when it stops and begins to read."""

    stream: Stream
    whole: Whole
    at: float
    leaves_at: float
    holds: list[tuple[float, bool]]
    got: list[bytes] = field(default_factory=list)
    here: bool = False
    over: bool = False
    held_at: float | None = None
    was_held: bool = False
    waits_since: int = 0  # the turn of its last step

    @property
    def item(self) -> SimItem:
        assert isinstance(self.stream.item, SimItem)
        return self.stream.item


def drawn(i: int, draw: random.Random) -> Client:
    """A random client: most are good, read all the time and stay."""
    item = SimItem(f"s{i}", draw.choice((1, 3, 8, 20, 40)), draw.choice((1, 2, 4, 8, 24)), work=draw.choice((1, 1, 4)))
    if draw.random() < 0.3:
        fault = draw.choice(("prefill", "step", "step", "advance", "long"))
        kinds = {"prefill": PREFILL_FAULTS, "step": STEP_FAULTS, "advance": ADVANCE_FAULTS, "long": {"": 0}}[fault]
        item = replace(item, fault=fault, kind=draw.choice(list(kinds)), fault_at=draw.randrange(item.answer))
    if item.fault == "long":
        item = replace(item, length=61, fault="")
    owner = draw.choice((None, None, "a", "b"))
    stream = Stream(i, item, owner, seed=draw.randrange(1000), deadline=draw.uniform(0, 3) if draw.random() < 0.15 else None)
    holds = []
    if draw.random() < 0.25:
        since = draw.uniform(0, 2)
        holds = [(since, True), (since + draw.choice((0.05, 0.5, 1.5, 4.0)), False)]
    leaves_at = draw.uniform(0, 3) if draw.random() < 0.15 else float("inf")
    return Client(stream, alone(item, stream.seed), draw.choice((0.0, 0.2, 1.0)) * draw.random(), leaves_at, holds)
