"""Bring a new archive to a model's requests step by step, and take it back where it is worse.

    NEW.mar is registered beside the old one, as MODEL--new -> a growing share of the requests goes there
    worse than the old one at any step: everything goes back, and MODEL--new is unregistered
    good at every step: MODEL itself becomes NEW.mar, while MODEL--new has the requests; then MODEL--new goes

Until the end nothing has changed but where the gateway sends requests; when this process ends, it sends them back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise import interrupts
from slotwise.client.management import ManagementClient
from slotwise.deploy.verdict import Window, agreement, verdict
from slotwise.errors import SlotwiseError
from slotwise.gateway import process
from slotwise.gateway.canary import RolloutRecord, rollout_file
from slotwise.server.processes import start_time

if TYPE_CHECKING:
    from slotwise.archive.build import ArchiveInfo
    from slotwise.gateway.process import GatewayRecord
    from slotwise.server.record import ServerRecord

POLL_S = 0.25
FOLLOW_S = 30.0
WINDOWS = 10  # of one step
DRAIN_S = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How to go: the shares in percent, and the seconds of each. shadow: the new one gets copies, and nobody its answers."""

    steps: Sequence[float]
    for_s: float
    shadow: bool = False

    def check(self) -> None:
        """Raise SlotwiseError where nothing would be compared."""
        rising = list(self.steps) == sorted(set(self.steps)) and all(0 < step <= 100 for step in self.steps)
        if not self.steps or not rising or (self.steps[0] == 100 and not self.shadow):
            raise SlotwiseError("the steps are shares in percent that rise, the first below 100", "for example 1,10,50,100")


class Worse(SlotwiseError):
    """The new archive was worse, and everything is as it was before."""


def rollout(server: ServerRecord, model: str, archive: ArchiveInfo, settings: Mapping[str, Any], plan: Plan, say: Say) -> str:
    """Carry out a plan; returns what was found, in one sentence. Raises Worse, or SlotwiseError."""
    plan.check()
    gateway = process.running(server.name)
    if gateway is None:
        raise SlotwiseError(
            "a roll-out goes through the gateway, and none is running", "`slotwise gateway --detach` starts one"
        )
    if RolloutRecord.load(server.name) is not None:
        raise SlotwiseError("another roll-out is going on", "wait for it, or end it")
    with ManagementClient(server) as client:
        names = {listed.name for listed in client.list()}
        if model not in names:
            raise SlotwiseError(f"there is no model {model!r} on the server", "`slotwise register` brings the first archive")
        new = f"{model}--new"
        if new in names:  # of a roll-out that was killed
            client.unregister(new)
        share = Share(gateway, server.name, model, new, plan)
        with _registered(client, new, archive, settings, say), share.running():
            found = _steps(share, plan, say)
            if not plan.shadow:
                _replace(client, share, archive, settings, say)
    return found


@contextmanager
def _registered(
    client: ManagementClient, name: str, archive: ArchiveInfo, settings: Mapping[str, Any], say: Say
) -> Iterator[None]:
    """The archive under that name; unregistered at the end, whatever happens."""
    say(f"registering {archive.path.name} as {name}")
    client.register(archive.path.name, name=name, **settings)
    try:
        client.wait_ready(name, settings["initial_workers"])
        yield
    finally:
        with interrupts.held(), suppress(SlotwiseError):
            client.unregister(name)


@dataclass
class Share:
    """The share of the requests that goes to the new archive, as the gateway was told."""

    gateway: GatewayRecord
    server: str
    model: str
    new: str
    plan: Plan
    step: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within, a share can be set; at the end everything goes to the model itself again."""
        try:
            yield
        finally:
            with interrupts.held():
                rollout_file(self.server).unlink(missing_ok=True)
                with suppress(SlotwiseError):
                    self._await(lambda shown: shown is None)
                    self.drained(self.new)

    def set(self, percent: float) -> None:
        """Have this share go to the new archive, from now on. Raises SlotwiseError where the gateway does not follow."""
        self.step += 1
        record = RolloutRecord(
            name=self.server,
            pid=os.getpid(),
            started=start_time(os.getpid()),
            model=self.model,
            new=self.new,
            percent=percent,
            shadow=self.plan.shadow,
            step=self.step,
            window_s=self.plan.for_s / WINDOWS,
        )
        record.write(rollout_file(self.server))
        self._await(lambda shown: shown is not None and shown["step"] == self.step)

    def shown(self) -> dict[str, Any]:
        """What the gateway has counted since the share was set."""
        found: dict[str, Any] | None = self.gateway.status()["rollout"]
        if found is None:
            raise SlotwiseError("the gateway has lost the roll-out", "its log says why")
        return found

    def drained(self, model: str) -> None:
        """Wait until the gateway has nothing at that model: unregistering it would lose what waits there."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            loads = [shown for shown in self.gateway.status()["models"] if shown["name"] == model]
            if not any(load["in_flight"] or load["queued"] for load in loads):
                return

    def _await(self, done: Callable[[dict[str, Any] | None], bool]) -> None:
        deadline = time.monotonic() + FOLLOW_S
        while not done(self.gateway.status()["rollout"]):
            if time.monotonic() > deadline:
                raise SlotwiseError("the gateway did not follow", "its log says why")
            time.sleep(POLL_S)


def _steps(share: Share, plan: Plan, say: Say) -> str:
    """Go from step to step. Raises Worse."""
    before: list[Window] = []
    for percent in plan.steps:
        share.set(percent)
        say(f"{percent:g}% of the requests {'are copied' if plan.shadow else 'go'} to {share.new}")
        ends, waiting = time.monotonic() + plan.for_s, True
        while waiting:
            time.sleep(POLL_S)
            shown = share.shown()
            windows: list[Window] = shown["windows"]
            over, compares = time.monotonic() >= ends, percent < 100 or plan.shadow
            if not compares:  # nothing goes to the old one any more: it is compared as it was before
                windows = [{"old": old["old"], "new": new["new"]} for old, new in zip(before, windows, strict=False)]
            judged = verdict(windows)
            if judged.worse:
                raise Worse(
                    f"{share.new} is worse, and everything is as it was: {judged.worse}", "its worker's log may say why"
                )
            waiting = not over or (compares and not judged.enough)
        before = windows
    return agreement(shown) if plan.shadow else f"{share.model} is the new archive now; at no step was it worse"


def _replace(client: ManagementClient, share: Share, archive: ArchiveInfo, settings: Mapping[str, Any], say: Say) -> None:
    """The model itself becomes the new archive, while MODEL--new has every request."""
    model = share.model
    share.set(100)
    share.drained(model)
    say(f"{model} becomes {archive.path.name}")
    old = client.describe(model)
    client.unregister(model)
    try:
        client.register(archive.path.name, name=model, **settings)
        client.wait_ready(model, settings["initial_workers"])
    except BaseException:
        with suppress(SlotwiseError):
            client.unregister(model)
        workers = max(len(old.workers), 1)
        client.register(
            old.archive, name=model, batch_size=old.batch_size, max_batch_delay=old.max_batch_delay, initial_workers=workers
        )
        client.wait_ready(model, workers)
        raise
