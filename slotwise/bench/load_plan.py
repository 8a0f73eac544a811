"""How to load a server, and which of what was seen counts: of answers and of streams alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True)
class LoadPlan:
    """How to load. clients: how many wait at the same time (closed loop), or how many may (open loop).

    The measured part ends after `seconds` or `requests`; warm_up_s before it is not counted. rate: arrivals a second, None
    for the closed loop. even: they come at equal distances. poison: the share of bad bodies. timeout_s: an answer later than
    this is an error.
    """

    clients: int = 8
    seconds: float | None = 5.0
    requests: int | None = None
    warm_up_s: float = 1.0
    rate: float | None = None
    poison: float = 0.0
    timeout_s: float = 60.0
    seed: int = 0
    even: bool = False

    @property
    def token_s(self) -> float:
        """How long its token has to last: with wrk and ab there may be a load before it, and one after it."""
        return 3 * (self.warm_up_s + (self.seconds or 0.0) + self.timeout_s)


class Timed(Protocol):
    """What was asked and answered. Times in seconds since the start of the load."""

    @property
    def began_s(self) -> float:
        """When it was sent, or was due."""

    @property
    def finished_s(self) -> float:
        """When it was over."""


T = TypeVar("T", bound=Timed)


def after_warm_up(samples: Sequence[T], plan: LoadPlan) -> list[T]:
    """The samples that count: finished after the warm-up; where a rate or a number of requests is planned, due after it."""
    if plan.rate is None and plan.requests is None:
        return [s for s in samples if s.finished_s >= plan.warm_up_s]
    return [s for s in samples if s.began_s + 1e-9 >= plan.warm_up_s]


def window(counted: Sequence[Timed], plan: LoadPlan) -> tuple[float, float]:
    """From when until when answers count for the throughput, in seconds since the start.

    A closed loop that ends after some seconds: those seconds. A number of requests: from the first to the last answer. A
    rate: from the end of the warm-up to the last answer.
    """
    if plan.rate is None and plan.requests is None and plan.seconds:
        return plan.warm_up_s, plan.warm_up_s + plan.seconds
    began_s = plan.warm_up_s if plan.requests is None else min((s.began_s for s in counted), default=plan.warm_up_s)
    return began_s, max((s.finished_s for s in counted), default=plan.warm_up_s)


def share(one: Timed, from_s: float, until_s: float) -> float:
    """How much of an answer's time lies in what is measured, 0 to 1.

    An answer that lies across an end counts by its share: counted as a whole, or not at all, it would make a slow server look
    up to an answer a client faster or slower.
    """
    if one.finished_s <= one.began_s:
        return float(from_s <= one.finished_s <= until_s)
    return max(0.0, min(one.finished_s, until_s) - max(one.began_s, from_s)) / (one.finished_s - one.began_s)
