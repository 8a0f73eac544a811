"""Trials: the settings that arithmetic likes first, then their neighbours and what Optuna's TPE proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import optuna

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import SearchSpace, TrialSetting

PRUNE_BELOW = 0.7  # of the best so far, after a third of the time: noise does not make that up
PATIENCE = 14  # trials without a better one
SEEDS = 9

Objective = Literal["throughput", "latency"]


class TrialBench(Protocol):
    """Whatever can serve a setting and be measured."""

    def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
        """Serve and load; raises SlotwiseError where the setting cannot be served."""

    def hold(self, settings: Sequence[TrialSetting]) -> None:
        """These will be measured in turn: keep them ready."""


@dataclass(frozen=True)
class Goal:
    """The most throughput, or the least p99, at so many clients, with no error and p99 within slo_p99_ms."""

    slo_p99_ms: float
    clients: int = 64
    objective: Objective = "throughput"

    def met(self, measured: LoadResult) -> bool:
        """Whether the constraints hold."""
        return not measured.lost and 0 < measured.p99_ms <= self.slo_p99_ms

    def score(self, measured: LoadResult) -> float:
        """Larger is better. What misses the target is below everything that meets it, the nearer the better."""
        if measured.lost or not measured.p99_ms:
            return -1e9 * (1 + measured.lost / max(1, measured.requests))
        if measured.p99_ms > self.slo_p99_ms:
            return -1e6 * measured.p99_ms / self.slo_p99_ms
        return measured.req_s if self.objective == "throughput" else -measured.p99_ms


@dataclass(frozen=True)
class Trial:
    """One setting, tried. state: "measured", "pruned" (a short look was enough) or "failed" (see note)."""

    setting: TrialSetting
    state: Literal["measured", "pruned", "failed"]
    measured: LoadResult | None = None
    note: str = ""


class Search:
    """Runs up to max_trials trials; `trials` is what was found so far, also after an interruption."""

    def __init__(
        self,
        bench: TrialBench,
        space: SearchSpace,
        goal: Goal,
        *,
        max_trials: int = 40,
        seconds: float = 3.0,
        seed: int = 0,
        heard: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.bench, self.space, self.goal = bench, space, goal
        self.max_trials, self.seconds, self.heard = max_trials, seconds, heard
        self.trials: list[Trial] = []
        self.study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def run(self, baselines: Iterable[TrialSetting], service: ServiceTimes | None) -> list[Trial]:
        """Measure the baselines, then search. service: what is known of the model, to rank the settings by arithmetic."""
        for setting in dict.fromkeys(baselines):
            self.try_setting(setting, whole=True)
        ranked = self.ranked(service) if service else list(self.space)
        for setting in _varied(ranked, SEEDS) if service else []:
            if not self.tried(setting) and len(self.trials) < self.max_trials:
                self.try_setting(setting)
        turn = 0
        while len(self.trials) < self.max_trials and not self.stuck():
            chosen = self.neighbour(ranked) if turn % 2 == 0 else self.proposed()
            chosen = chosen or self.neighbour(ranked) or next((s for s in ranked if not self.tried(s)), None)
            if chosen is None:
                break
            self.try_setting(chosen)
            turn += 1
        return self.trials

    def best(self, count: int = 1) -> list[Trial]:
        """The best measured trials that meet the goal."""
        full = [t for t in self.trials if t.state == "measured" and t.measured and self.goal.met(t.measured)]
        return sorted(full, key=self.score, reverse=True)[:count]

    def closest(self) -> Trial | None:
        """The trial that comes nearest to the goal."""
        return max((t for t in self.trials if t.measured), key=self.score, default=None)

    def score(self, trial: Trial) -> float:
        """Larger is better."""
        return self.goal.score(trial.measured) if trial.measured else -1e10

    def tried(self, setting: TrialSetting) -> bool:
        """Whether there is a trial of this setting."""
        return any(trial.setting == setting for trial in self.trials)

    def stuck(self) -> bool:
        """Whether the last trials brought nothing better."""
        scores = [self.score(trial) for trial in self.trials]
        return len(scores) > PATIENCE and max(scores[-PATIENCE:]) <= max(scores[:-PATIENCE])

    def ranked(self, service: ServiceTimes) -> list[TrialSetting]:
        """Every setting, the best first by arithmetic; the server's own share of a batch follows from the first trial."""
        first = next((t for t in self.trials if t.setting.batch_size == 1 and t.measured and t.measured.req_s), None)
        if first and first.measured:
            alone = replace(service, batch_ms=0.0).batch_time_ms(1, first.setting.threads, first.setting.workers)
            service = replace(service, batch_ms=max(0.0, 1000 * first.setting.workers / first.measured.req_s - alone))
        requests = 2 * self.goal.clients + 200
        scores = {s: self.goal.score(simulate(service, s, self.goal.clients, requests)) for s in self.space}
        return sorted(scores, key=lambda s: scores[s], reverse=True)

    def neighbour(self, ranked: Sequence[TrialSetting]) -> TrialSetting | None:
        """The likeliest untried setting one step from the best ones."""
        order = {setting: i for i, setting in enumerate(ranked)}
        for trial in sorted(self.trials, key=self.score, reverse=True)[:2]:
            near = [s for s in self.space.neighbours(trial.setting) if s in order and not self.tried(s)]
            if near:
                return min(near, key=lambda s: order[s])
        return None

    def proposed(self) -> TrialSetting | None:
        """What Optuna proposes; None where it repeats itself."""
        for _ in range(5):
            trial = self.study.ask()
            setting = self.space.suggest(trial)
            known = next((t for t in self.trials if t.setting == setting), None)
            if known is None:
                return setting
            self.study.tell(trial, self.score(known))
        return None

    def try_setting(self, setting: TrialSetting, *, whole: bool = False) -> None:
        """Measure one setting; whole: without a short look first."""
        trial = self._measured(setting, whole)
        self.trials.append(trial)
        self._tell(trial)
        self.heard(trial)

    def _measured(self, setting: TrialSetting, whole: bool) -> Trial:
        best = self.best()
        try:
            if best and not whole:
                look = self.bench.measure(setting, self.goal.clients, self.seconds / 3)
                if hopeless(look, best[0].measured, self.goal):
                    return Trial(setting, "pruned", look)
            return Trial(setting, "measured", self.bench.measure(setting, self.goal.clients, self.seconds))
        except SlotwiseError as error:
            return Trial(setting, "failed", note=error.message)

    def _tell(self, trial: Trial) -> None:
        try:
            params = self.space.params(trial.setting)
        except ValueError:
            return  # a baseline outside the space
        choices = {
            "batch_size": tuple(self.space.batch_sizes),
            "max_batch_delay": tuple(self.space.delays),
            "layout": tuple(range(len(self.space.layouts))),
            "engine": tuple(range(len(self.space.engines))),
        }
        if any(params[name] not in values for name, values in choices.items()):
            return
        kinds = {name: optuna.distributions.CategoricalDistribution(values) for name, values in choices.items()}
        self.study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=self.score(trial)))


def hopeless(look: LoadResult, best: LoadResult | None, goal: Goal) -> bool:
    """Whether a short look is enough: errors, far over the target, or far behind the best."""
    if look.lost or not look.p99_ms or look.p99_ms > 2 * goal.slo_p99_ms:
        return True
    if best is None:
        return False
    if goal.objective == "latency":
        return look.p99_ms * PRUNE_BELOW > best.p99_ms
    return look.req_s < PRUNE_BELOW * best.req_s


def _varied(ranked: Sequence[TrialSetting], count: int) -> list[TrialSetting]:
    """The first three, then the first of every layout, engine and batch size: arithmetic may be wrong about any of them."""
    chosen = list(ranked[:3])
    for aspect in (lambda s: (s.engine, s.precision), lambda s: (s.workers, s.threads), lambda s: s.batch_size):
        seen = {aspect(s) for s in chosen}
        for setting in ranked:
            if aspect(setting) not in seen and len(chosen) < count:
                seen.add(aspect(setting))
                chosen.append(setting)
    return chosen
