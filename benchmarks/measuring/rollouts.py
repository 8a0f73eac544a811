"""How often simulated roll-outs of equal and of worse archives are called worse."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from tests.support.rollouts import EQUAL, MISS, RATE, STEP_S, STEPS, WORSE, Scenario, simulated

EQUAL_RUNS, WORSE_RUNS = 400, 100


def measure() -> dict[str, Any]:
    """Every scenario; what is worse at three rates."""
    with ProcessPoolExecutor() as pool:
        each = partial(pool.map, chunksize=10)
        rows = [row(scenario, RATE, EQUAL_RUNS, each) for scenario in EQUAL]
        rows += [row(scenario, rate, WORSE_RUNS, each) for scenario in WORSE for rate in (RATE / 5, RATE, 5 * RATE)]
    return {"rows": rows, "steps": STEPS, "step_s": STEP_S, "rate": RATE}


def row(scenario: Scenario, rate: float, runs: int, each: Callable[..., Any]) -> dict[str, Any]:
    """What became of so many roll-outs of one kind."""
    outcomes = list(each(partial(simulated, scenario, rate), range(runs)))
    called = [found for found in outcomes if found[0] != MISS]
    median = sorted(called, key=lambda found: found[1])[len(called) // 2] if called else None
    by = {what: sum(found[0] == what for found in called) for what in ("errors", "times")}
    return {
        **asdict(scenario),
        "rate": rate,
        "runs": runs,
        "called_worse": len(called),
        "by": by,
        "median_requests": median and median[1],
        "median_s": median and round(median[2], 1),
    }
