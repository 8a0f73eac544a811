"""Measure the best trials against each other, several rounds in turn, and decide which one wins.

Two measurements minutes apart differ also because something else ran on the machine meanwhile. In each round of a final every
setting is measured once, so that a disturbance hits all of them, and settings are compared round by round: what one gave for
each of the other. A lead counts only where the 95% interval of these ratios does not hold 1; else the simplest setting wins.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.goal import Goal
from slotwise.tune.search import TrialBench
from slotwise.tune.space import TrialSetting

ROUNDS = 5
RESAMPLES = 10_000  # of the rounds, for an interval


@dataclass(frozen=True)
class Finalist:
    """One setting and its result of every round."""

    setting: TrialSetting
    rounds: tuple[LoadResult, ...]

    def median(self, key: str) -> float:
        """The median of a number over the rounds."""
        return float(statistics.median(getattr(result, key) for result in self.rounds))

    @property
    def lost(self) -> int:
        """Requests lost in all rounds."""
        return sum(result.lost for result in self.rounds)


class RatioInterval(NamedTuple):
    """What one setting gave for each of another, round by round: the mean (geometric), and its 95% interval (bootstrap)."""

    mean: float
    low: float
    high: float

    @property
    def is_a_difference(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.low <= 1 <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def paired(one: Finalist, other: Finalist, key: str) -> RatioInterval:
    """The ratio of a number of two settings that were measured in the same rounds."""
    pairs = zip(one.rounds, other.rounds, strict=True)
    logs = np.log([max(getattr(a, key), 1e-9) / max(getattr(b, key), 1e-9) for a, b in pairs])
    drawn = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    mean, low, high = (float(np.exp(value)) for value in (logs.mean(), *np.quantile(drawn, (0.025, 0.975))))
    return RatioInterval(mean, low, high)


@dataclass(frozen=True)
class Decision:
    """The winner, and the reason in one sentence. equal: the settings that are no different from the best.

    ratios: what the winner gave for each of every finalist. dropped: what could not be served in the final, and why.
    """

    winner: Finalist | None
    reason: str
    finalists: tuple[Finalist, ...] = ()
    equal: tuple[TrialSetting, ...] = ()
    ratios: Mapping[TrialSetting, RatioInterval] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def play(
    bench: TrialBench,
    settings: Sequence[TrialSetting],
    goal: Goal,
    *,
    seconds: float,
    rounds: int = ROUNDS,
) -> Decision:
    """Measure every setting once a round, and decide among them."""
    results: dict[TrialSetting, list[LoadResult]] = {setting: [] for setting in dict.fromkeys(settings)}
    dropped: dict[str, str] = {}
    bench.keep_ready(list(results))
    for turn in range(rounds):
        in_order = list(results)
        for setting in in_order if turn % 2 == 0 else reversed(in_order):  # nobody always comes after the same other
            try:
                results[setting].append(bench.measure(setting, goal.clients, seconds))
            except SlotwiseError as error:
                dropped[str(setting)] = error.message
                del results[setting]
    finalists = [Finalist(setting, tuple(measured)) for setting, measured in results.items() if measured]
    return decide(finalists, goal, dropped)


def decide(finalists: Sequence[Finalist], goal: Goal, dropped: dict[str, str] | None = None) -> Decision:
    """The best finalist that keeps the target; of those that are no different from it, the simplest."""
    key, sign = ("req_s", 1) if goal.objective == "throughput" else ("p99_ms", -1)
    in_target = [f for f in finalists if not f.lost and 0 < f.median("p99_ms") <= goal.slo_p99_ms]
    in_target.sort(key=lambda f: sign * f.median(key), reverse=True)
    if not in_target:
        reason = f"no setting kept p99 within {goal.slo_p99_ms:g} ms without errors"
        return Decision(None, reason, tuple(finalists), dropped=dropped or {})
    top = in_target[0]
    equals = [f for f in in_target if f is top or not paired(top, f, key).is_a_difference]
    winner = min(equals, key=lambda f: f.setting.effort)
    others = tuple(f.setting for f in equals if f is not winner)
    ratios = {f.setting: paired(winner, f, key) for f in finalists if f is not winner}
    return Decision(winner, _reason(winner, in_target, key), tuple(finalists), others, ratios, dropped or {})


def _reason(winner: Finalist, in_target: Sequence[Finalist], key: str) -> str:
    """Why the winner won. in_target: the finalists that kept the target, the best first."""
    unit = "answers a second" if key == "req_s" else "ms at p99"

    def numbers(f: Finalist) -> str:
        return f"{f.setting} gave {figure(f.median(key))} {unit}"

    top = in_target[0]
    if winner is not top:
        return (
            f"no difference: {numbers(top)}, {numbers(winner)}; round by round {paired(top, winner, key)} of it, "
            "so the simpler setting wins"
        )
    if len(in_target) == 1:
        return f"{numbers(winner)} and was the only finalist that kept the target"
    second = in_target[1]
    ratio = paired(winner, second, key)
    if not ratio.is_a_difference:
        return (
            f"no difference: {numbers(winner)}, {numbers(second)}; round by round {ratio} of it, "
            "and the winner is the simpler setting"
        )
    return f"{numbers(winner)}, {numbers(second)}: round by round {ratio} of it"


def figure(value: float) -> str:
    """A number as people read it: 2132, 30.7, 0.52."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
