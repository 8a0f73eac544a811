"""Search for the setting that serves a model best: measure one, learn from it, choose the next.

1. The baselines are measured: the server's default registration, and the profile's own setting.
2. A simulation ranks all settings. Up to FIRST_CHOICES are measured: the best of that list, and the best-ranked setting of each
   engine, layout and batch size that is not among them yet.
3. Then, in turn: an untried neighbour of the best trials, and a proposal of Optuna's TPE sampler, which learns from all trials.

The search ends after `max_trials`, or when the last PATIENCE trials brought nothing better. Before a setting is measured it
gets a first look, a third as long. Where that is clearly worse, it is not measured: its trial is "pruned".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import optuna

from slotwise.bench.load import LoadResult
from slotwise.errors import SlotwiseError
from slotwise.tune.goal import Goal
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import SearchSpace, TrialSetting

PRUNE_BELOW = 0.7  # of the best: a first look below this share is pruned; what noise does is smaller
PATIENCE = 14  # trials
FIRST_CHOICES = 9  # settings that are measured because of the simulation
OPTUNA_ATTEMPTS = 5  # it may propose what was tried already
NO_RESULT = -1e10  # the score of a trial that could not be measured


class TrialBench(Protocol):
    """Serves a setting and measures it: on a real server (LiveBench), or simulated in the tests."""

    def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
        """Serve the setting and load it. Raises SlotwiseError where it cannot be served."""

    def keep_ready(self, settings: Sequence[TrialSetting]) -> None:
        """Keep these settings loaded between measurements, because they are measured alternately."""


@dataclass(frozen=True)
class Trial:
    """One setting and its result. state: "measured", "pruned" (`measured` is its first look) or "failed" (`note` says why)."""

    setting: TrialSetting
    state: Literal["measured", "pruned", "failed"]
    measured: LoadResult | None = None
    note: str = ""


class Search:
    """One search. `trials` holds the trials so far, also after an interruption; `on_trial` is called with each new one."""

    def __init__(
        self,
        bench: TrialBench,
        space: SearchSpace,
        goal: Goal,
        *,
        max_trials: int = 40,
        seconds: float = 3.0,
        seed: int = 0,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.bench, self.space, self.goal = bench, space, goal
        self.max_trials, self.seconds, self.on_trial = max_trials, seconds, on_trial
        self.trials: list[Trial] = []
        self.study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def run(self, baselines: Iterable[TrialSetting], service: ServiceTimes | None) -> list[Trial]:
        """Search, and return all trials. service: how long the handler takes, for the simulation; None where nobody knows."""
        for setting in dict.fromkeys(baselines):
            self.try_setting(setting, may_prune=False)
        ranked = self.ranked(service) if service else list(self.space)
        for setting in _varied(ranked, FIRST_CHOICES) if service else []:
            if not self.tried(setting) and len(self.trials) < self.max_trials:
                self.try_setting(setting)
        turn = 0
        while len(self.trials) < self.max_trials and not self.without_progress():
            chosen = self.next_setting(ranked, turn)
            if chosen is None:
                break
            self.try_setting(chosen)
            turn += 1
        return self.trials

    def next_setting(self, ranked: Sequence[TrialSetting], turn: int) -> TrialSetting | None:
        """A neighbour of the best in even turns, a proposal in odd ones; else any untried setting. None: all are tried."""
        chosen = self.neighbour_of_best(ranked) if turn % 2 == 0 else self.proposal()
        if chosen is None:
            chosen = self.neighbour_of_best(ranked)
        if chosen is None:
            chosen = next((setting for setting in ranked if not self.tried(setting)), None)
        return chosen

    def best(self, count: int = 1) -> list[Trial]:
        """The best trials that were measured to the end and meet the goal."""
        complete = [t for t in self.trials if t.state == "measured" and t.measured and self.goal.met(t.measured)]
        return sorted(complete, key=self.score, reverse=True)[:count]

    def closest(self) -> Trial | None:
        """The trial that comes nearest to the goal; None where nothing could be measured."""
        return max((t for t in self.trials if t.measured), key=self.score, default=None)

    def score(self, trial: Trial) -> float:
        """The score of a trial's result; larger is better."""
        return self.goal.score(trial.measured) if trial.measured else NO_RESULT

    def tried(self, setting: TrialSetting) -> bool:
        """Whether there is a trial of this setting."""
        return any(trial.setting == setting for trial in self.trials)

    def without_progress(self) -> bool:
        """Whether the last PATIENCE trials brought nothing better than those before."""
        scores = [self.score(trial) for trial in self.trials]
        return len(scores) > PATIENCE and max(scores[-PATIENCE:]) <= max(scores[:-PATIENCE])

    def ranked(self, service: ServiceTimes) -> list[TrialSetting]:
        """Every setting, the best first by simulation."""
        service = self._with_server_time(service)
        requests = 2 * self.goal.clients + 200  # two of every client, and enough for a p99
        scores = {s: self.goal.score(simulate(service, s, self.goal.clients, requests)) for s in self.space}
        return sorted(scores, key=lambda s: scores[s], reverse=True)

    def _with_server_time(self, service: ServiceTimes) -> ServiceTimes:
        """Set batch_ms to the server's own time a batch: the measured time of a batch of one, less the handler's.

        This assumes that the clients keep every worker busy.
        """
        single = next((t for t in self.trials if t.setting.batch_size == 1 and t.measured and t.measured.req_s), None)
        if single is None or single.measured is None:
            return service
        workers, threads = single.setting.workers, single.setting.threads
        turns = max(1.0, workers * threads / service.cores)  # more threads than cores take turns, with the server's part, too
        handler_ms = replace(service, batch_ms=0.0).batch_time_ms(1, threads, workers)
        measured_ms = 1000 * workers / single.measured.req_s
        return replace(service, batch_ms=max(0.0, (measured_ms - handler_ms) / turns))

    def neighbour_of_best(self, ranked: Sequence[TrialSetting]) -> TrialSetting | None:
        """An untried neighbour of the trial with the highest score, or else of the second: the first of them in `ranked`."""
        rank = {setting: i for i, setting in enumerate(ranked)}
        for trial in sorted(self.trials, key=self.score, reverse=True)[:2]:
            untried = [s for s in self.space.neighbours(trial.setting) if s in rank and not self.tried(s)]
            if untried:
                return min(untried, key=lambda s: rank[s])
        return None

    def proposal(self) -> TrialSetting | None:
        """An untried setting that Optuna proposes; None where it proposes only tried ones."""
        for _ in range(OPTUNA_ATTEMPTS):
            optuna_trial = self.study.ask()  # a new setting's result comes through _tell_optuna
            setting = self.space.suggest(optuna_trial)
            earlier = next((t for t in self.trials if t.setting == setting), None)
            if earlier is None:
                return setting
            self.study.tell(optuna_trial, self.score(earlier))
        return None

    def try_setting(self, setting: TrialSetting, *, may_prune: bool = True) -> None:
        """Measure one setting and record its trial."""
        trial = self._measure(setting, may_prune)
        self.trials.append(trial)
        self._tell_optuna(trial)
        self.on_trial(trial)

    def _measure(self, setting: TrialSetting, may_prune: bool) -> Trial:
        best = self.best()
        try:
            if best and may_prune:
                first_look = self.bench.measure(setting, self.goal.clients, self.seconds / 3)
                if hopeless(first_look, best[0].measured, self.goal):
                    return Trial(setting, "pruned", first_look)
            return Trial(setting, "measured", self.bench.measure(setting, self.goal.clients, self.seconds))
        except SlotwiseError as error:
            return Trial(setting, "failed", note=error.message)

    def _tell_optuna(self, trial: Trial) -> None:
        """Let the sampler learn from a trial. A baseline may lie outside the space: then there is nothing to tell."""
        choices = self.space.choices()
        try:
            params = self.space.params(trial.setting)
        except ValueError:
            return
        if any(params[name] not in values for name, values in choices.items()):
            return
        distributions = {name: optuna.distributions.CategoricalDistribution(values) for name, values in choices.items()}
        value = self.score(trial)
        self.study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))


def hopeless(first_look: LoadResult, best: LoadResult | None, goal: Goal) -> bool:
    """Whether a first look is enough: requests were lost or none was answered, p99 is over twice the target, or the best is far
    ahead."""
    if first_look.lost or not first_look.p99_ms or first_look.p99_ms > 2 * goal.slo_p99_ms:
        return True
    if best is None:
        return False
    if goal.objective == "latency":
        return first_look.p99_ms * PRUNE_BELOW > best.p99_ms
    return first_look.req_s < PRUNE_BELOW * best.req_s


def _varied(ranked: Sequence[TrialSetting], count: int) -> list[TrialSetting]:
    """The first three of the list, then the first with every other engine, layout and batch size, `count` in all.

    The simulation may be wrong about any of these.
    """
    chosen = list(ranked[:3])
    for aspect in (lambda s: (s.engine, s.precision), lambda s: (s.workers, s.threads), lambda s: s.batch_size):
        covered = {aspect(s) for s in chosen}
        for setting in ranked:
            if aspect(setting) not in covered and len(chosen) < count:
                covered.add(aspect(setting))
                chosen.append(setting)
    return chosen
