"""Tune one model: time its handler, search, play the final, and measure what the report's figures show."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slotwise import __version__
from slotwise.bench import offline
from slotwise.bench.bodies import RequestBody
from slotwise.bench.load import LoadResult, rounded
from slotwise.bench.offline import BatchTiming
from slotwise.deploy.deploy import of_model
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held, let_through
from slotwise.profiles.auto_values import AUTO
from slotwise.profiles.batch_delay import WHOLE_MS
from slotwise.server.supervisor import HOSTS
from slotwise.tune.finals import ROUNDS, Decision, figure, play
from slotwise.tune.goal import Goal
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.search import Search, Trial
from slotwise.tune.simulate import ServiceTimes
from slotwise.tune.space import SHORT_DELAYS, SearchSpace, TrialSetting
from slotwise.worker.engines.processor import model_name
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.separability.about import version_of

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.server.record import ServerRecord

FINALISTS = 3
OFFLINE_SIZES = (1, 4, 16, 32)
OFFLINE_SECONDS = 0.4
SWEEP_CLIENTS = (1, 8, 32, 64, 128)
SWEEP_DELAYS = (0, 1, 5, 20, 50, 100)
PACKAGES = ("torchserve", "multi-model-server", "nvidia-pytriton", "torch", "onnxruntime", "openvino", "ctranslate2", "optuna")


@dataclass(frozen=True)
class TuneRequest:
    """What to tune, and how long. tool: the program that measures, as in `slotwise bench --tool`.

    engines: the (engine, precision) pairs to try; none: those of the profile. oversubscribe: also more workers than cores.
    poison: the share of requests that are bad on purpose. cores: what this model's workers may have.
    """

    model: str
    goal: Goal
    engines: Sequence[tuple[str, str]] = ()
    max_trials: int = 40
    seconds: float = 3.0
    rounds: int = ROUNDS
    tool: str = "slotwise"
    oversubscribe: bool = False
    poison: float = 0.0
    cores: int = field(default_factory=available_cores)


@dataclass
class TuneResult:
    """Everything that the report shows. default: the registration without parameters. profile: the profile's setting."""

    request: TuneRequest
    default: TrialSetting
    profile: TrialSetting
    timed: list[BatchTiming] = field(default_factory=list)
    service: ServiceTimes | None = None
    trials: list[Trial] = field(default_factory=list)
    decision: Decision | None = None
    closest: Trial | None = None
    warm_up: list[LoadResult] = field(default_factory=list)  # rounds on the server as it was found
    by_clients: list[tuple[int, LoadResult]] = field(default_factory=list)  # batch size, load
    by_delay: list[tuple[int, LoadResult]] = field(default_factory=list)  # ms, load
    machine: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def winner(self) -> TrialSetting | None:
        """The setting to serve with; None where none meets the target."""
        return self.decision.winner.setting if self.decision and self.decision.winner else None

    @property
    def reason(self) -> str:
        """Why it won, or what came closest."""
        if self.decision and self.decision.winner:
            return self.decision.reason
        closest = self.closest
        if closest is None or closest.measured is None:
            return "no setting could be served at all"
        result = closest.measured
        numbers = f"{figure(result.req_s)} answers a second at p99 {figure(result.p99_ms)} ms, {result.lost} lost"
        target = f"no setting keeps p99 within {self.request.goal.slo_p99_ms:g} ms without errors"
        return f"{target}; the closest is {closest.setting}: {numbers}"

    def as_json(self) -> dict[str, Any]:
        """For programs, and tune.json."""

        def numbers(result: LoadResult | None) -> dict[str, Any] | None:
            return rounded(result) if result else None

        finalists = self.decision.finalists if self.decision else ()
        ratios = self.decision.ratios if self.decision else {}
        return {
            "request": asdict(self.request),
            "winner": asdict(self.winner) if self.winner else None,
            "reason": self.reason,
            "closest": asdict(self.closest.setting) if self.closest else None,
            "default": asdict(self.default),
            "profile": asdict(self.profile),
            "warm_up": list(map(numbers, self.warm_up)),
            "finalists": [
                {
                    "setting": asdict(f.setting),
                    "winner_to_this": ratios.get(f.setting),
                    "req_s": f.median("req_s"),
                    "p99_ms": f.median("p99_ms"),
                    "rounds": list(map(numbers, f.rounds)),
                }
                for f in finalists
            ],
            "trials": [{**asdict(t), "measured": numbers(t.measured)} for t in self.trials],
            "service": asdict(self.service) if self.service else None,
            "offline": [asdict(t) for t in self.timed],
            "by_clients": [{"batch_size": n, **rounded(m)} for n, m in self.by_clients],
            "by_delay": [{"max_batch_delay": ms, **rounded(m)} for ms, m in self.by_delay],
            "machine": self.machine,
            "took_s": round(self.took_s, 1),
        }


def tune(
    request: TuneRequest,
    record: ServerRecord,
    info: ArchiveInfo,
    bodies: Sequence[RequestBody],
    say: Callable[[str], None],
    on_trial: Callable[[Trial], None],
) -> TuneResult:
    """Tune one model on a running server, which is left as it was. Raises SlotwiseError where the server ends
    meanwhile, or serves no setting in the final.
    """
    started, cores = time.monotonic(), request.cores
    default, profile = baselines(record, info, cores)
    outcome = TuneResult(request, default, profile, machine=machine(record))
    space = space_of(record, request, cores)
    say("timing the handler itself")
    outcome.timed, outcome.service = time_handler(record, info, bodies, cores)
    with held(), LiveBench(record, info, bodies, tool=request.tool, poison=request.poison) as bench, let_through():
        say("warming the server up")
        outcome.warm_up = warmed_up(bench, outcome, request.goal.clients, say)
        search = Search(bench, space, request.goal, max_trials=request.max_trials, seconds=request.seconds, on_trial=on_trial)
        outcome.trials = search.run([outcome.default, outcome.profile], outcome.service)
        _need_alive(record, "the trials")
        outcome.closest = search.closest()
        best = [trial.setting for trial in search.best(2 * FINALISTS)]
        for candidates in (best[:FINALISTS], best[FINALISTS:]):  # the second three, where none of the first kept the target
            if candidates and outcome.winner is None:
                outcome.decision = final(bench, outcome, candidates, say)
                _need_alive(record, "the final")
        if outcome.decision and not outcome.decision.finalists:
            why = "; ".join(f"{setting}: {reason}" for setting, reason in outcome.decision.dropped.items())
            raise SlotwiseError(f"the final could serve no setting: {why}", f"its logs are in {record.state_dir / 'logs'}")
        if outcome.winner:
            sweep(bench, outcome, outcome.winner, say)
    outcome.took_s = time.monotonic() - started
    return outcome


def _need_alive(record: ServerRecord, when: str) -> None:
    if not record.alive():
        raise SlotwiseError(f"the server {record.name} ended during {when}", f"its logs are in {record.state_dir / 'logs'}")


def warmed_up(bench: LiveBench, outcome: TuneResult, clients: int, say: Callable[[str], None]) -> list[LoadResult]:
    """Load the profile's setting, or the default one where that cannot be served, until rounds rise no more."""
    for setting in dict.fromkeys([outcome.profile, outcome.default]):
        try:
            rounds = bench.warm_up(setting, clients)
        except SlotwiseError as error:
            say(f"{setting}: {error.message}")
            continue
        say(f"warm after {len(rounds)} rounds: {' '.join(figure(result.req_s) for result in rounds)} answers a second")
        return rounds
    return []


def final(bench: LiveBench, outcome: TuneResult, candidates: Sequence[TrialSetting], say: Callable[[str], None]) -> Decision:
    """Measure the candidates, the default registration and the profile against each other."""
    request = outcome.request
    settings = list(dict.fromkeys([*candidates, outcome.default, outcome.profile]))
    say(f"final: {len(settings)} settings, {request.rounds} rounds in turn")
    return play(bench, settings, request.goal, seconds=request.seconds, rounds=request.rounds)


def sweep(bench: LiveBench, outcome: TuneResult, winner: TrialSetting, say: Callable[[str], None]) -> None:
    """Measure what the figures show: the winner at other batch sizes over clients, and at other delays.

    What cannot be measured is left out: the winner is known.
    """
    say("measuring around the winner for the figures")

    def measured(setting: TrialSetting, clients: int) -> Iterator[LoadResult]:
        try:
            yield bench.measure(setting, clients, seconds)
        except SlotwiseError as error:
            say(f"left out of the figures: {setting}: {error.message}")

    seconds = min(outcome.request.seconds, 2.0)
    goal_clients = outcome.request.goal.clients
    bench.keep_ready([])
    for size in sorted({1, 8, winner.batch_size}):
        for clients in [n for n in SWEEP_CLIENTS if n <= 4 * goal_clients]:
            outcome.by_clients += [(size, one) for one in measured(replace(winner, batch_size=size), clients)]
    batched = winner if winner.batch_size > 1 else replace(winner, batch_size=8)
    short = () if outcome.machine["server"] in WHOLE_MS else SHORT_DELAYS
    for delay in sorted((*short, *SWEEP_DELAYS)):
        setting = replace(batched, max_batch_delay=delay)
        outcome.by_delay += [(delay, one) for one in measured(setting, goal_clients)]


def baselines(record: ServerRecord, info: ArchiveInfo, cores: int) -> tuple[TrialSetting, TrialSetting]:
    """The setting that the server registers without parameters, and the profile's setting for this model."""
    profile = record.effective_profile()
    own = of_model(info, profile, record.overrides, record.kind)
    threads = own.threads

    def threads_of(workers: int) -> int:
        share = max(1, cores // workers)
        return min(threads or share, share)

    workers = own.initial_workers
    of_profile = TrialSetting(own.batch_size, own.max_batch_delay_ms, workers, threads_of(workers))
    if record.kind in HOSTS:  # there a registration without parameters is the profile's
        return of_profile, of_profile
    of_server = TrialSetting(1, 100, 1, threads_of(1))
    return of_server, of_profile


def space_of(record: ServerRecord, request: TuneRequest, cores: int) -> SearchSpace:
    """The settings that can be tried on this server: a trial cannot change what `--set` fixed when the server was started."""
    fixed = record.overrides
    for key in ("engine", "precision"):
        if key in fixed and request.engines:
            raise SlotwiseError(
                f"the server was started with --set {key}={fixed[key]}", "start it without, or leave --engines away"
            )
    profile, numbers = record.effective_profile(), [key for key in fixed if AUTO not in fixed[key]]  # "auto" fixes nothing
    return SearchSpace.of_machine(
        cores,
        request.goal.clients,
        shared_by=profile.initial_workers if "initial_workers" in numbers else 1,
        threads=profile.threads if "threads" in numbers else 0,
        engines=request.engines,
        oversubscribe=request.oversubscribe,
        kind=record.kind,
    )


def time_handler(
    record: ServerRecord, info: ArchiveInfo, bodies: Sequence[RequestBody], cores: int
) -> tuple[list[BatchTiming], ServiceTimes | None]:
    """Time the handler without a server: its batches on one thread, the line through them, and the share that threads divide.

    The service times are None for a handler that runs in a server only.
    """
    profile = record.effective_profile()

    def timed(threads: int, sizes: Sequence[int]) -> list[BatchTiming]:
        changed = profile.explicitly({"threads": threads, "initial_workers": 1}, "tune")
        environ = changed.environment([*record.overrides, "threads", "initial_workers"])
        return offline.measure(info.path, bodies, sizes, seconds=OFFLINE_SECONDS, environ=environ)

    try:
        alone = timed(1, OFFLINE_SIZES)
        line = offline.fit([(t.n, t.batch_ms) for t in alone])
        if cores == 1:
            return alone, ServiceTimes(line, 1)
        largest = OFFLINE_SIZES[-1]
        on_one_ms = next(t.batch_ms for t in alone if t.n == largest)
        on_all_ms = timed(cores, [largest])[0].batch_ms
        parallel = (1 - on_all_ms / on_one_ms) / (1 - 1 / cores)  # Amdahl's law
        return alone, ServiceTimes(line, cores, min(0.98, max(0.0, parallel)))
    except SlotwiseError:
        return [], None


def machine(record: ServerRecord) -> dict[str, Any]:
    """The machine, the server and the packages that measured."""
    versions = {"slotwise": __version__, "python": platform.python_version()}
    versions |= {package: version for package in PACKAGES if (version := version_of(package))}
    about = {"processor": model_name() or platform.machine(), "cores": available_cores(), "system": platform.system()}
    return {**about, "server": record.kind, "profile": record.profile, "overrides": record.overrides, "versions": versions}
