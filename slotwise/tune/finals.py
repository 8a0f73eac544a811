"""Measure the best trials against each other, several rounds in turn, and decide which one wins.

Two measurements minutes apart differ also because something else ran on the machine meanwhile. In each round of a final every
setting is measured once, so that a disturbance hits all of them. A lead counts only where it is larger than the spread over
the rounds; else the simplest setting wins.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.goal import Goal
from slotwise.tune.search import TrialBench
from slotwise.tune.space import TrialSetting

ROUNDS = 5


@dataclass(frozen=True)
class Finalist:
    """One setting and its result of every round."""

    setting: TrialSetting
    rounds: tuple[LoadResult, ...]

    def median(self, key: str) -> float:
        """The median of a number over the rounds."""
        return float(statistics.median(getattr(result, key) for result in self.rounds))

    def spread(self, key: str) -> float:
        """The range of a number over the rounds without its lowest and highest value."""
        values = sorted(getattr(result, key) for result in self.rounds)
        inner = values[1:-1] if len(values) >= 4 else values
        return float(inner[-1] - inner[0])

    @property
    def lost(self) -> int:
        """Requests lost in all rounds."""
        return sum(result.lost for result in self.rounds)


@dataclass(frozen=True)
class Decision:
    """The winner, and the reason in one sentence. equal: the settings whose distance to the best is within the spread.

    dropped: the settings that could not be served in the final, and why.
    """

    winner: Finalist | None
    reason: str
    finalists: tuple[Finalist, ...] = ()
    equal: tuple[TrialSetting, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)


def play(
    bench: TrialBench,
    settings: Sequence[TrialSetting],
    goal: Goal,
    *,
    seconds: float,
    rounds: int = ROUNDS,
    on_result: Callable[[int, TrialSetting], None] = lambda turn, setting: None,
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
                on_result(turn, setting)
            except SlotwiseError as error:
                dropped[str(setting)] = error.message
                del results[setting]
    finalists = [Finalist(setting, tuple(measured)) for setting, measured in results.items() if measured]
    return decide(finalists, goal, dropped)


def decide(finalists: Sequence[Finalist], goal: Goal, dropped: dict[str, str] | None = None) -> Decision:
    """The best finalist that keeps the target; where its lead is within the spread, the simplest of its equals."""
    key, sign = ("req_s", 1) if goal.objective == "throughput" else ("p99_ms", -1)
    in_target = [f for f in finalists if not f.lost and 0 < f.median("p99_ms") <= goal.slo_p99_ms]
    in_target.sort(key=lambda f: sign * f.median(key), reverse=True)
    if not in_target:
        reason = f"no setting kept p99 within {goal.slo_p99_ms:g} ms without errors"
        return Decision(None, reason, tuple(finalists), dropped=dropped or {})
    top = in_target[0]
    equals = [f for f in in_target if abs(top.median(key) - f.median(key)) <= max(top.spread(key), f.spread(key))]
    winner = min(equals, key=lambda f: f.setting.effort)
    others = tuple(f.setting for f in equals if f is not winner)
    return Decision(winner, _reason(winner, in_target, key), tuple(finalists), others, dropped or {})


def _reason(winner: Finalist, in_target: Sequence[Finalist], key: str) -> str:
    """Why the winner won. in_target: the finalists that kept the target, the best first."""
    unit = "answers a second" if key == "req_s" else "ms at p99"

    def numbers(f: Finalist) -> str:
        return f"{figure(f.median(key))} {unit} (spread {figure(f.spread(key))})"

    top = in_target[0]
    if winner is not top:
        return (
            f"no difference: {top.setting} gave {numbers(top)}, {winner.setting} gave {numbers(winner)}; "
            "the lead is within the spread, so the simpler setting wins"
        )
    others = [f for f in in_target if f is not winner]
    if not others:
        return f"{winner.setting} gave {numbers(winner)} and was the only finalist that kept the target"
    second = others[0]
    lead = abs(winner.median(key) - second.median(key))
    noise = max(winner.spread(key), second.spread(key))
    if lead <= noise:
        return (
            f"no difference: {winner.setting} gave {numbers(winner)}, {second.setting} gave {numbers(second)}; "
            "the lead is within the spread, and the winner is the simpler setting"
        )
    return f"{winner.setting} gave {numbers(winner)}, {second.setting} only {numbers(second)}: a lead larger than the spread"


def figure(value: float) -> str:
    """A number as people read it: 2132, 30.7, 0.52."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
