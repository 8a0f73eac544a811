"""Roll-outs simulated with the gateway's own comparison and the command's own verdict: false alarms and power.

A roll-out goes through the default steps; its requests come evenly, and their times are spread as a served model's are. It is
judged after every window, as `slotwise rollout` does, until it is called worse or the last step is over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from slotwise.deploy.rollout import RolloutPlan
from slotwise.frontend.rollout.canary import SAME_LOAD
from slotwise.frontend.rollout.canary_windows import Comparison, Which
from slotwise.frontend.rollout.verdict import Judge

STEPS = (1.0, 10.0, 50.0, 100.0)
RATE, STEP_S = 100.0, 60.0  # requests a second, seconds of a step
SPREAD = 0.3  # of the logarithm of the times
WINDOW_S = RolloutPlan(STEPS, STEP_S).window_s
INCIDENT_S = 3.0  # a worker ends and is started again
MISS = "none"
EQUAL_RUNS, WORSE_RUNS = 400, 100


@dataclass(frozen=True)
class Scenario:
    """One kind of roll-out. errors: the old archive's share; more: the new one's beyond it. slower: the new one's times.

    incidents: how many times on average, in a roll-out and of each archive, everything fails for INCIDENT_S. busier: the
    times of both, and the errors, rise to this many times as much over the roll-out. times_longer: of every step.
    """

    name: str
    errors: float = 0.0
    more: float = 0.0
    slower: float = 1.0
    incidents: float = 0.0
    busier: float = 1.0
    times_longer: int = 1


EQUAL = (
    Scenario("equal, no errors"),
    Scenario("equal, 1% errors", errors=0.01),
    Scenario("equal, 10% errors", errors=0.1),
    Scenario("equal, 1% errors, steps three times as long", errors=0.01, times_longer=3),
    Scenario("equal, the machine gets three times as busy", errors=0.02, busier=3.0),
    Scenario("equal, each has two incidents of 3 s in which all fails", incidents=2.0),
    Scenario("a tenth slower, which is tolerated", slower=1.1),
)
WORSE = (
    *(
        Scenario(f"{more:.0%} more errors than {errors:.0%}", errors=errors, more=more)
        for errors in (0.0, 0.01)
        for more in (0.01, 0.02, 0.05)
    ),
    Scenario("1.2 times the time", slower=1.2),
    Scenario("1.5 times the time", slower=1.5),
)


@dataclass
class Simulated:
    """One simulated roll-out: its clock, and what it draws from."""

    scenario: Scenario
    draw: random.Random
    rate: float
    now_s: float = 0.0

    def outcome(self) -> tuple[str, int, float]:
        """What became of it, how many requests had come until then, and after how many seconds."""
        comparison, judge = Comparison(WINDOW_S, lambda: self.now_s), Judge()
        bad = {which: list(self._incidents()) for which in ("old", "new")}
        came = 0
        for step in STEPS:
            share = RolloutPlan(STEPS, STEP_S).percent(step) / 100
            group = min(share, 1 - share)
            comparison.restart()
            judge.begin_step()
            begun_s = self.now_s
            while self.now_s - begun_s < STEP_S * self.scenario.times_longer or not judge.judgement().enough:
                self._window(comparison, group, bad, timed=SAME_LOAD[0] <= share <= SAME_LOAD[1])
                came += round(self.rate * WINDOW_S)
                self.now_s = round(self.now_s + WINDOW_S, 6)
                before = len(comparison.windows)
                comparison.turn(refusals=share <= SAME_LOAD[1])
                for window in comparison.windows[before:]:
                    judge.add(window)
                worse = judge.judgement().worse
                if worse:
                    return ("errors" if "fail" in worse else "times"), came, self.now_s
        return MISS, came, self.now_s

    def _window(self, comparison: Comparison, group: float, bad: dict[str, list[float]], *, timed: bool) -> None:
        scenario, draw = self.scenario, self.draw
        length_s = STEP_S * len(STEPS) * scenario.times_longer
        busy = 1 + (scenario.busier - 1) * min(self.now_s / length_s, 1.0)
        sides: tuple[tuple[Which, float, float], ...] = (("old", 0.0, 1.0), ("new", scenario.more, scenario.slower))
        for which, more, slower in sides:
            down = any(begun <= self.now_s < begun + INCIDENT_S for begun in bad[which])
            errors = 1.0 if down else scenario.errors * busy + more
            for _ in range(_poisson(draw, self.rate * WINDOW_S * group)):
                if draw.random() < errors:
                    comparison.failed(which)
                else:
                    comparison.answered(which, busy * slower * draw.lognormvariate(-4.0, SPREAD), timed)

    def _incidents(self) -> Iterator[float]:
        length_s = STEP_S * len(STEPS) * self.scenario.times_longer
        for _ in range(_poisson(self.draw, self.scenario.incidents)):
            yield self.draw.uniform(0, length_s)


def _poisson(draw: random.Random, mean: float) -> int:
    """How many of many rare things happen."""
    if mean > 50:
        return max(0, round(draw.gauss(mean, mean**0.5)))
    count, time = 0, draw.expovariate(1.0)
    while time < mean:
        count, time = count + 1, time + draw.expovariate(1.0)
    return count


def simulated(scenario: Scenario, rate: float, seed: int) -> tuple[str, int, float]:
    """One roll-out."""
    return Simulated(scenario, random.Random(seed), rate).outcome()


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


def rows(runs: int = EQUAL_RUNS, worse_runs: int = WORSE_RUNS) -> list[dict[str, Any]]:
    """Every scenario; what is worse at three rates."""
    with ProcessPoolExecutor() as pool:
        each = partial(pool.map, chunksize=10)
        equal = [row(scenario, RATE, runs, each) for scenario in EQUAL]
        return equal + [row(scenario, rate, worse_runs, each) for scenario in WORSE for rate in (RATE / 5, RATE, 5 * RATE)]
