"""Trials on a running server, each as a model of its own, `tune-MODEL-7`: what is registered is never touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slotwise import project
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan, LoadResult
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.tune.cleanup import TrialCleanup
from slotwise.tune.space import TrialSetting
from slotwise.tune.variant import write_variant

if TYPE_CHECKING:
    from slotwise.archive.build import ArchiveInfo
    from slotwise.server.record import ServerRecord

WARM_UP_S = 1.0  # the first time; the JVM compiles what a new model needs
AGAIN_S = 0.3
TIMEOUT_S = 30.0
READY_TIMEOUT_S = 120.0
ENOUGH = 10  # answers a client


class LiveBench:
    """Registers a variant of the archive for every setting, loads it, and unregisters it when another one's turn comes.

    timeout_s: an answer later than this is lost. tool: what measures, as in `slotwise bench --tool`.

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
    ) -> None:
        self.record, self.info, self.bodies, self.patience_s, self.tool = record, info, bodies, timeout_s, tool
        self.management = ManagementClient(record)
        self.serving: dict[TrialSetting, str] = {}  # setting: the name of its model
        self.held: set[TrialSetting] = set()
        self.count = 0
        self.timeout_s = record.effective_profile().response_timeout_s

    def __enter__(self) -> LiveBench:
        self.cleanup = TrialCleanup(project.state_root() / self.record.name)  # after a swap another folder than state_dir
        return self

    def __exit__(self, *exception: object) -> None:
        self.management.close()
        self.cleanup.close()  # it unregisters what is still there

    def hold(self, settings: Sequence[TrialSetting]) -> None:
        """These stay registered together; an idle worker costs memory, no time."""
        self.held = set(settings)

    def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
        """Serve the setting and load it; raises SlotwiseError where it does not become ready."""
        known = setting in self.serving
        if not known:
            for other in [s for s in self.serving if s not in self.held]:
                self._unregister(self.serving.pop(other))
            self.serving[setting] = self._register(setting)
        plan = LoadPlan(clients, seconds, warm_up_s=AGAIN_S if known else WARM_UP_S, timeout_s=self.patience_s)
        target = Target(f"{self.record.inference_url}/predictions/{self.serving[setting]}", auth_headers(self.record))
        if self.tool == "slotwise":
            return load.measure(target, self.bodies, plan)
        warm_up = LoadPlan(clients, plan.warm_up_s, warm_up_s=0.0, timeout_s=self.patience_s)
        load.measure(target, self.bodies, warm_up)  # it waits for its answers: the server's queue is empty then
        measured = load_tools.measure(self.tool, target, self.bodies, replace(plan, warm_up_s=0.0))
        if measured.requests < ENOUGH * clients:  # such a tool forgets what is under way when its time is over
            return load.measure(target, self.bodies, plan)
        return measured

    def _register(self, setting: TrialSetting) -> str:
        self.count += 1
        name = f"tune-{self.info.name}-{os.getpid()}-{self.count}"
        archive = self.record.model_store / f"{name}.mar"
        self.cleanup.registers(name, archive)
        wishes = {"initial_workers": setting.workers, "threads": setting.threads}
        chosen = {"engine": setting.engine, "precision": setting.precision}
        write_variant(self.info.path, archive, self.record.profile, wishes | {k: v for k, v in chosen.items() if v})
        try:
            self.management.register(
                archive.name,
                name=name,
                batch_size=setting.batch_size,
                max_batch_delay=setting.max_batch_delay,
                initial_workers=setting.workers,
                response_timeout=self.timeout_s,
            )
            self.management.wait_ready(name, setting.workers, timeout_s=READY_TIMEOUT_S)
        except SlotwiseError:
            self._unregister(name)
            raise
        archive.unlink(missing_ok=True)  # the server has unpacked it
        return name

    def _unregister(self, name: str) -> None:
        with contextlib.suppress(SlotwiseError):
            self.management.unregister(name)
        archive = self.record.model_store / f"{name}.mar"
        archive.unlink(missing_ok=True)
        self.cleanup.unregistered(name, archive)
