"""Is the new archive worse than the old? Windows are compared in pairs: what disturbs the machine disturbs both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_REQUESTS = 200  # of each
LEAST_PAIRS = 5
SLOWER = 1.1  # a p99 that is higher by less is not worth going back for
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09)

Window = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Judgement:
    """enough: whether it can be said at all. worse: what is worse, in one sentence; empty where nothing is."""

    enough: bool
    worse: str = ""


def verdict(windows: Sequence[Window]) -> Judgement:
    """What these windows say of the new archive."""
    pairs = [(window["old"], window["new"]) for window in windows if window["old"]["requests"] and window["new"]["requests"]]
    totals = [sum(side["requests"] for side in sides) for sides in zip(*pairs, strict=True)] if pairs else [0, 0]
    if min(totals) < LEAST_REQUESTS or len(pairs) < LEAST_PAIRS:
        return Judgement(enough=False)
    asked = f"({totals[1]:.0f} and {totals[0]:.0f} requests)"
    errors = [(old["errors"] / old["requests"], new["errors"] / new["requests"]) for old, new in pairs]
    if _least_difference(errors) > 0:
        old_share, new_share = (100 * statistics.fmean(side) for side in zip(*errors, strict=True))
        return Judgement(True, f"{new_share:.1f}% of its requests fail, {old_share:.1f}% of the old one's {asked}")
    times = [(old["p99_ms"], new["p99_ms"]) for old, new in pairs if old["p99_ms"] and new["p99_ms"]]
    if len(times) >= LEAST_PAIRS and _least_difference([(SLOWER * old, new) for old, new in times]) > 0:
        old_ms, new_ms = (statistics.fmean(side) for side in zip(*times, strict=True))
        return Judgement(True, f"its p99 is {new_ms:.1f} ms, the old one's {old_ms:.1f} ms {asked}")
    return Judgement(enough=True)


def _least_difference(pairs: Sequence[tuple[float, float]]) -> float:
    """The lower end of the 95% interval of the mean difference, new less old."""
    differences = [new - old for old, new in pairs]
    freedom = len(differences) - 1
    t = T_95[freedom - 1] if freedom <= len(T_95) else 1.96
    return statistics.fmean(differences) - t * statistics.stdev(differences) / math.sqrt(len(differences))


def agreement(shown: Mapping[str, Any]) -> str:
    """What a shadow's answers say, in one sentence."""
    compared, differing = int(shown["compared"]), int(shown["differing"])
    return f"{compared - differing} of {compared} answers are the same"
