"""Measure settings on a running server, each as a model of its own (`tune-MODEL-PID-7`): no registered model is touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadResult
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.tune.cleanup import TrialCleanup
from slotwise.tune.space import TrialSetting
from slotwise.tune.variant import write_variant

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.server.record import ServerRecord

WARM_UP_S = 1.0  # of a new setting: the JVM compiles what a new model needs
AGAIN_WARM_UP_S = 0.3
TIMEOUT_S = 30.0
READY_TIMEOUT_S = 120.0
ENOUGH = 10  # answers a client; fewer are too few for wrk and ab
ROUND_S = 2.0  # of the server's own warm-up
ROUNDS_MAX = 15
STEADY = 1.05  # a round that gives less than this times the best one before shows no rise any more


class LiveBench:
    """Registers a variant of the archive for every setting, loads it, and unregisters it before it registers another.

    timeout_s: an answer later than this is lost. tool: the program that measures, as in `slotwise bench --tool`. poison: the
    share of requests that are bad on purpose; a good one that is lost beside them fails the trial.

    with LiveBench(record, info, bodies) as bench:
        bench.measure(Setting(8, 5, 1), clients=32, seconds=3)
    """

    def __init__(
        self,
        record: ServerRecord,
        info: ArchiveInfo,
        bodies: Sequence[RequestBody],
        *,
        timeout_s: float = TIMEOUT_S,
        tool: str = "slotwise",
        poison: float = 0.0,
    ) -> None:
        self.record, self.info, self.bodies = record, info, bodies
        self.timeout_s, self.tool, self.poison = timeout_s, tool, poison
        self.management = ManagementClient(record)
        self.serving: dict[TrialSetting, str] = {}  # setting: the name of its model
        self.kept: set[TrialSetting] = set()
        self.count = 0
        self.response_timeout_s = record.effective_profile().response_timeout_s

    def __enter__(self) -> LiveBench:
        self.cleanup = TrialCleanup(project.state_root() / self.record.name)  # after a swap another folder than state_dir
        return self

    def __exit__(self, *exception: object) -> None:
        self.management.close()
        self.cleanup.close()  # it unregisters what is still there

    def warm_up(self, setting: TrialSetting, clients: int) -> list[LoadResult]:
        """Load a server that has just started until its rounds rise no more: its JVM compiles for half a minute."""
        rounds: list[LoadResult] = []
        best = 0.0
        while len(rounds) < ROUNDS_MAX:
            rounds.append(self.measure(setting, clients, ROUND_S))
            if rounds[-1].req_s < STEADY * best:
                break
            best = max(best, rounds[-1].req_s)
        return rounds

    def keep_ready(self, settings: Sequence[TrialSetting]) -> None:
        """Keep these settings registered together; an idle worker costs memory, no time."""
        self.kept = set(settings)

    def serve(self, setting: TrialSetting) -> str:
        """Serve the setting, and return its model's name. Raises SlotwiseError where it does not become ready."""
        if setting not in self.serving:
            for other in [s for s in self.serving if s not in self.kept]:
                self._unregister(self.serving.pop(other))
            self.serving[setting] = self._register(setting)
        return self.serving[setting]

    def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
        """Serve the setting and load it. Raises SlotwiseError where it does not become ready."""
        warm_up_s = AGAIN_WARM_UP_S if setting in self.serving else WARM_UP_S
        plan = LoadPlan(clients, seconds, warm_up_s=warm_up_s, timeout_s=self.timeout_s, poison=self.poison)
        target = Target.of(self.record, self.serve(setting), plan.token_s)
        if self.tool == "slotwise":
            return load.measure(target, self.bodies, plan)
        warm_up = LoadPlan(clients, plan.warm_up_s, warm_up_s=0.0, timeout_s=self.timeout_s)
        load.measure(target, self.bodies, warm_up)  # it waits for its answers, so the server's queue is empty afterwards
        measured = load_tools.measure(self.tool, target, self.bodies, replace(plan, warm_up_s=0.0))
        if not measured.errors and measured.requests < ENOUGH * clients:
            # they do not wait for what is under way when their time is over; with errors it is our own client's already
            return load.measure(target, self.bodies, plan)
        return measured

    def _register(self, setting: TrialSetting) -> str:
        self.count += 1
        name = f"tune-{self.info.name}-{os.getpid()}-{self.count}"
        archive = self.record.model_store / f"{name}.mar"
        self.cleanup.registers(name, archive)
        wishes: dict[str, int | str] = {"initial_workers": setting.workers, "threads": setting.threads}
        wishes |= {"engine": setting.engine} if setting.engine else {}
        wishes |= {"precision": setting.precision} if setting.precision else {}
        write_variant(self.info.path, archive, self.record.profile, wishes)
        try:
            self.management.register(
                archive.name,
                name=name,
                batch_size=setting.batch_size,
                max_batch_delay=setting.max_batch_delay,
                initial_workers=setting.workers,
                response_timeout=self.response_timeout_s,
            )
            self.management.wait_ready(name, setting.workers, timeout_s=READY_TIMEOUT_S)
        except SlotwiseError:
            self._unregister(name)
            raise
        archive.unlink(missing_ok=True)  # the server has unpacked it
        return name

    def _unregister(self, name: str) -> None:
        """Unregister it; where that fails the clean-up goes on trying once the tuning has ended."""
        archive = self.record.model_store / f"{name}.mar"
        archive.unlink(missing_ok=True)
        try:
            self.management.unregister(name)
        except SlotwiseError:
            if not self._is_gone(name):
                return
        self.cleanup.unregistered(name, archive)

    def _is_gone(self, name: str) -> bool:
        try:
            return name not in {model.name for model in self.management.list()}
        except SlotwiseError:
            return False
