"""One tuning from beginning to end: time the handler, search, play the final, draw what the report shows."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import __version__
from slotwise.bench import offline
from slotwise.bench.bodies import RequestBody
from slotwise.bench.load import LoadResult, rounded
from slotwise.bench.offline import BatchTiming
from slotwise.deploy.deploy import registration
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held, let_through
from slotwise.tune.finals import ROUNDS, Decision, figure, play
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.search import Goal, Search, Trial
from slotwise.tune.simulate import ServiceTimes
from slotwise.tune.space import SearchSpace, TrialSetting
from slotwise.worker.cores import available_cores

if TYPE_CHECKING:
    from slotwise.archive.build import ArchiveInfo
    from slotwise.server.record import ServerRecord
    from slotwise.tune.live_bench import LiveBench

FINALISTS = 3
OFFLINE_SIZES = (1, 4, 16, 32)
OFFLINE_SECONDS = 0.4
SWEEP_CLIENTS = (1, 8, 32, 64, 128)
SWEEP_DELAYS = (1, 5, 20, 50, 100)
PACKAGES = ("torchserve", "multi-model-server", "torch", "onnxruntime", "openvino", "ctranslate2", "optuna")


@dataclass(frozen=True)
class TuneRequest:
    """What to tune, and how long. engines: (engine, precision) pairs, none: as the profile has it. tool: what measures."""

    model: str
    goal: Goal
    engines: Sequence[tuple[str, str]] = ()
    max_trials: int = 40
    seconds: float = 3.0
    rounds: int = ROUNDS
    tool: str = "slotwise"


@dataclass
class TuneResult:
    """Everything that the report tells."""

    order: TuneRequest
    default: TrialSetting
    profile: TrialSetting
    timed: list[BatchTiming] = field(default_factory=list)
    service: ServiceTimes | None = None
    trials: list[Trial] = field(default_factory=list)
    decision: Decision | None = None
    closest: Trial | None = None
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
        near = self.closest
        if near is None or near.measured is None:
            return "no setting could be served at all"
        m = near.measured
        said = f"{figure(m.req_s)} answers a second at p99 {figure(m.p99_ms)} ms, {m.lost} lost"
        target = f"no setting keeps p99 within {self.order.goal.slo_p99_ms:g} ms without errors"
        return f"{target}; the closest is {near.setting}: {said}"

    def as_json(self) -> dict[str, Any]:
        """For programs, and result.json."""

        def load(m: LoadResult | None) -> dict[str, Any] | None:
            return rounded(m) if m else None

        finalists = self.decision.finalists if self.decision else ()
        return {
            "order": asdict(self.order),
            "winner": asdict(self.winner) if self.winner else None,
            "reason": self.reason,
            "closest": asdict(self.closest.setting) if self.closest else None,
            "default": asdict(self.default),
            "profile": asdict(self.profile),
            "finalists": [
                {
                    "setting": asdict(f.setting),
                    "req_s": f.middle("req_s"),
                    "p99_ms": f.middle("p99_ms"),
                    "rounds": list(map(load, f.rounds)),
                }
                for f in finalists
            ],
            "trials": [{**asdict(t), "measured": load(t.measured)} for t in self.trials],
            "service": asdict(self.service) if self.service else None,
            "offline": [asdict(t) for t in self.timed],
            "by_clients": [{"batch_size": n, **rounded(m)} for n, m in self.by_clients],
            "by_delay": [{"max_batch_delay": ms, **rounded(m)} for ms, m in self.by_delay],
            "machine": self.machine,
            "took_s": round(self.took_s, 1),
        }


def tune(
    order: TuneRequest,
    record: ServerRecord,
    info: ArchiveInfo,
    bodies: Sequence[RequestBody],
    say: Callable[[str], None],
    heard: Callable[[Trial], None],
) -> TuneResult:
    """Tune one model on a running server; the server keeps exactly what it had. Raises SlotwiseError where it is gone."""
    started, cores = time.monotonic(), available_cores()
    outcome = TuneResult(order, *baselines(record, info, cores), machine=machine(record))
    space = space_of(record, order, cores)
    say("timing the handler itself")
    outcome.timed, outcome.service = known(record, info, bodies, cores)
    with held(), LiveBench(record, info, bodies, tool=order.tool) as bench, let_through():
        search = Search(bench, space, order.goal, max_trials=order.max_trials, seconds=order.seconds, heard=heard)
        outcome.trials = search.run([outcome.default, outcome.profile], outcome.service)
        if not record.alive():
            raise SlotwiseError(
                f"the server {record.name} ended during the trials", f"its logs are in {record.state_dir / 'logs'}"
            )
        outcome.closest = search.closest()
        best = [trial.setting for trial in search.best(2 * FINALISTS)]
        for candidates in (best[:FINALISTS], best[FINALISTS:]):
            if candidates and outcome.winner is None:
                outcome.decision = final(bench, outcome, candidates, say)
        if outcome.winner:
            sweep(bench, outcome, outcome.winner, say)
    outcome.took_s = time.monotonic() - started
    return outcome


def final(bench: LiveBench, outcome: TuneResult, candidates: Sequence[TrialSetting], say: Callable[[str], None]) -> Decision:
    """The candidates, the default registration and the profile against each other."""
    order = outcome.order
    entered = list(dict.fromkeys([*candidates, outcome.default, outcome.profile]))
    say(f"final: {len(entered)} settings, {order.rounds} rounds in turn")
    return play(bench, entered, order.goal, seconds=order.seconds, rounds=order.rounds)


def sweep(bench: LiveBench, outcome: TuneResult, winner: TrialSetting, say: Callable[[str], None]) -> None:
    """What the figures show: the winner at other batch sizes over clients, and at other delays."""
    say("measuring around the winner for the figures")
    seconds, most = min(outcome.order.seconds, 2.0), outcome.order.goal.clients
    bench.hold([])
    for size in sorted({1, 8, winner.batch_size}):
        for clients in [n for n in SWEEP_CLIENTS if n <= 4 * most]:
            outcome.by_clients.append((size, bench.measure(replace(winner, batch_size=size), clients, seconds)))
    batched = winner if winner.batch_size > 1 else replace(winner, batch_size=8)
    for delay in SWEEP_DELAYS:
        setting = replace(batched, max_batch_delay=delay)
        outcome.by_delay.append((delay, bench.measure(setting, most, seconds)))


def baselines(record: ServerRecord, info: ArchiveInfo, cores: int) -> tuple[TrialSetting, TrialSetting]:
    """What the server registers without parameters, and what the profile says."""
    profile = record.effective_profile()
    said = registration(info, profile, record.overrides)
    wishes = info.model.get("profiles", {}).get(profile.name, {})
    threads = int(record.overrides.get("threads") or wishes.get("threads") or profile.threads or 0)

    def threads_of(workers: int) -> int:
        share = max(1, cores // workers)
        return min(threads or share, share)

    workers = said["initial_workers"]
    own = TrialSetting(said["batch_size"], said["max_batch_delay"], workers, threads_of(workers))
    return TrialSetting(1, 100, 1, threads_of(1)), own


def space_of(record: ServerRecord, order: TuneRequest, cores: int) -> SearchSpace:
    """What may be varied on this server: what `--set` fixed when it was started, a trial cannot change."""
    fixed = record.overrides
    for key in ("engine", "precision"):
        if key in fixed and order.engines:
            raise SlotwiseError(
                f"the server was started with --set {key}={fixed[key]}", "start it without, or leave --engines away"
            )
    shared_by, threads = int(fixed.get("initial_workers", 1)), int(fixed.get("threads", 0))
    return SearchSpace.of_machine(cores, order.goal.clients, shared_by=shared_by, threads=threads, engines=order.engines)


def known(
    record: ServerRecord, info: ArchiveInfo, bodies: Sequence[RequestBody], cores: int
) -> tuple[list[BatchTiming], ServiceTimes | None]:
    """The handler's line a*n + b on one thread, and how well more threads divide it; None where it runs only in a server."""
    profile = record.effective_profile()

    def timed(threads: int, sizes: Sequence[int]) -> list[BatchTiming]:
        said = profile.explicitly({"threads": threads, "initial_workers": 1}, "tune")
        environ = said.environment([*record.overrides, "threads", "initial_workers"])
        return offline.measure(info.path, bodies, sizes, seconds=OFFLINE_SECONDS, environ=environ)

    try:
        alone = timed(1, OFFLINE_SIZES)
        line = offline.fit([(t.n, t.batch_ms) for t in alone])
        if cores == 1:
            return alone, ServiceTimes(line, 1)
        largest = OFFLINE_SIZES[-1]
        share = timed(cores, [largest])[0].batch_ms / next(t.batch_ms for t in alone if t.n == largest)
        return alone, ServiceTimes(line, cores, min(0.98, max(0.0, (1 - share) / (1 - 1 / cores))))
    except SlotwiseError:
        return [], None


def machine(record: ServerRecord) -> dict[str, Any]:
    """Where and with what it was measured."""
    name = ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        name = next(
            (line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")), ""
        )
    versions = {"slotwise": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    about = {"processor": name or platform.machine(), "cores": available_cores(), "system": platform.system()}
    return {**about, "server": record.kind, "profile": record.profile, "overrides": record.overrides, "versions": versions}
