"""The best trials again, in turn, several times: which lead is more than noise?

Settings that are measured one after the other are measured on different machines, so to say: other things run meanwhile.
Here every round measures each of them once, so what disturbs one disturbs all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.search import Goal, TrialBench
from slotwise.tune.space import TrialSetting

ROUNDS = 5


@dataclass(frozen=True)
class Finalist:
    """One setting over all rounds."""

    setting: TrialSetting
    rounds: tuple[LoadResult, ...]

    def middle(self, key: str) -> float:
        """The median of a number over the rounds."""
        return float(statistics.median(getattr(m, key) for m in self.rounds))

    def spread(self, key: str) -> float:
        """The range of a number over the rounds without its lowest and highest value."""
        values = sorted(getattr(m, key) for m in self.rounds)
        inner = values[1:-1] if len(values) >= 4 else values
        return float(inner[-1] - inner[0])

    @property
    def lost(self) -> int:
        """Requests lost in all rounds."""
        return sum(m.lost for m in self.rounds)


@dataclass(frozen=True)
class Decision:
    """Who won and why, in one sentence. equal: the settings that could not be told apart from the best."""

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
    heard: Callable[[int, TrialSetting], None] = lambda turn, setting: None,
) -> Decision:
    """Measure all settings in turn and decide among them."""
    found: dict[TrialSetting, list[LoadResult]] = {setting: [] for setting in dict.fromkeys(settings)}
    dropped: dict[str, str] = {}
    bench.hold(list(found))
    for turn in range(rounds):
        order = list(found)
        for setting in order if turn % 2 == 0 else reversed(order):  # nobody always comes after the same other
            try:
                found[setting].append(bench.measure(setting, goal.clients, seconds))
                heard(turn, setting)
            except SlotwiseError as error:
                dropped[str(setting)] = error.message
                del found[setting]
    return decide([Finalist(s, tuple(m)) for s, m in found.items() if m], goal, dropped)


def decide(finalists: Sequence[Finalist], goal: Goal, dropped: dict[str, str] | None = None) -> Decision:
    """The best finalist that keeps the target; where its lead is within the spread, the simplest of its equals."""
    key, sign = ("req_s", 1) if goal.objective == "throughput" else ("p99_ms", -1)
    running = [f for f in finalists if not f.lost and 0 < f.middle("p99_ms") <= goal.slo_p99_ms]
    running.sort(key=lambda f: sign * f.middle(key), reverse=True)
    told = tuple(finalists), dropped or {}
    if not running:
        return Decision(None, f"no setting kept p99 within {goal.slo_p99_ms:g} ms without errors", told[0], (), told[1])
    top = running[0]
    equals = [f for f in running if abs(top.middle(key) - f.middle(key)) <= max(top.spread(key), f.spread(key))]
    winner = min(equals, key=lambda f: f.setting.effort)
    reason = _reason(winner, top, running, key)
    return Decision(winner, reason, told[0], tuple(f.setting for f in equals if f is not winner), told[1])


def _reason(winner: Finalist, top: Finalist, running: Sequence[Finalist], key: str) -> str:
    unit = "answers a second" if key == "req_s" else "ms at p99"

    def says(f: Finalist) -> str:
        return f"{figure(f.middle(key))} {unit} (spread {figure(f.spread(key))})"

    if winner is not top:
        return (
            f"no difference: {top.setting} gave {says(top)}, {winner.setting} gave {says(winner)}; the lead is within the "
            "spread, so the simpler setting wins"
        )
    others = [f for f in running if f is not winner]
    if not others:
        return f"{winner.setting} gave {says(winner)} and was the only finalist that kept the target"
    second = others[0]
    lead, noise = abs(winner.middle(key) - second.middle(key)), max(winner.spread(key), second.spread(key))
    if lead <= noise:
        return (
            f"no difference: {winner.setting} gave {says(winner)}, {second.setting} gave {says(second)}; the lead is within "
            "the spread, and the winner is the simpler setting"
        )
    return f"{winner.setting} gave {says(winner)}, {second.setting} only {says(second)}: a lead larger than the spread"


def figure(value: float) -> str:
    """A number as people read it: 2132, 30.7, 0.52."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
