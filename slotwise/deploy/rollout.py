"""Bring a new archive to a model's requests step by step, and take it back where it is worse.

    NEW.mar is registered beside the old one, as MODEL--new -> a growing share of the requests goes there
    worse than the old one at any time: everything goes back, and MODEL--new is unregistered
    good to the end: MODEL itself becomes NEW.mar, while MODEL--new has the requests; then MODEL--new goes

Until the end nothing has changed but where the gateway sends requests. A record (frontend/rollout/record.py) says at every
moment what is going on, so wherever this process is killed the gateway goes on, and the next `rollout` or `serve` settles it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotwise import interrupts
from slotwise.client.management import ManagementClient
from slotwise.deploy.canary_share import POLL_S, CanaryShare
from slotwise.deploy.takeover import is_registered, register_ready, registration_of, settle, take_over, withdraw
from slotwise.errors import SlotwiseError
from slotwise.frontend import process
from slotwise.frontend.rollout.record import RolloutRecord, load_all, only_one
from slotwise.frontend.rollout.verdict import Judge, agreement
from slotwise.server.processes import start_time

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.client.live_model import LiveModel
    from slotwise.server.record import ServerRecord

WINDOWS, SHORTEST_S = 30, 0.5  # of one step
CONTROL = 5.0  # percent that the old archive keeps at least, while the two are compared

Say = Callable[[str], None]


@dataclass(frozen=True)
class RolloutPlan:
    """How to go: the shares in percent, and the seconds of each. shadow: the new one gets copies, and nobody its answers."""

    steps: Sequence[float]
    for_s: float
    shadow: bool = False

    def check(self) -> None:
        """Raise SlotwiseError where nothing would be compared."""
        rising = list(self.steps) == sorted(set(self.steps)) and all(0 < step <= 100 for step in self.steps)
        if not self.steps or not rising or (self.steps[0] == 100 and not self.shadow):
            raise SlotwiseError("the steps are shares in percent that rise, the first below 100", "for example 1,10,50,100")

    @property
    def window_s(self) -> float:
        """The seconds of one window of the comparison."""
        return max(self.for_s / WINDOWS, SHORTEST_S)

    def percent(self, step: float) -> float:
        """The share of a step: while they are compared the old archive keeps a part."""
        return step if self.shadow else min(step, 100.0 - CONTROL)


class RolloutRejected(SlotwiseError):
    """The new archive was worse, and everything is as it was before."""


def rollout(
    server: ServerRecord, model: str, archive: ArchiveInfo, settings: Mapping[str, Any], plan: RolloutPlan, say: Say
) -> str:
    """Carry out a plan; returns what was found, in one sentence. Raises RolloutRejected, or SlotwiseError.

    settings: as `registration` gives them. The new archive has as many workers as the model has.
    """
    plan.check()
    if process.running(server.name) is None:
        raise SlotwiseError(
            "a roll-out goes through the gateway, and none is running", "`slotwise gateway --detach` starts one"
        )
    with only_one(server.name, model), ManagementClient(server) as client:
        for record in load_all(server.name):
            if record.model == model:  # of whoever had the lock before
                settle(client, record, say)
        if model in {record.new for record in load_all(server.name)}:
            raise SlotwiseError(f"{model} is a roll-out's own", "name the model itself")
        new = f"{model}--new"
        if is_registered(client, new):  # by no roll-out: its archive would be lost
            raise SlotwiseError(f"{new} is registered, and a roll-out needs that name", f"`slotwise unregister {new}`")
        old = _only_version(client, model)
        if old.stateful or archive.config.get("sequenceBatching"):
            why = f"the requests of {model} belong to sequences, and two archives cannot share one"
            raise SlotwiseError(why, "register the new archive as a version of its own, and make it the default")
        after = {"archive": archive.path.name, **settings}
        after["initial_workers"] = len(old.workers) or after["initial_workers"]
        before = registration_of(old, settings.get("response_timeout"))
        before["initial_workers"] = after["initial_workers"]
        pid = os.getpid()
        record = RolloutRecord(
            name=server.name,
            pid=pid,
            started=start_time(pid),
            model=model,
            new=new,
            after=after,
            before=before,
            versions=(old.version, archive.version),
            sha256=archive.sha256,
            content=archive.content,
            shadow=plan.shadow,
            window_s=plan.window_s,
        )
        return _carried_out(client, CanaryShare(record), plan, say)


def _only_version(client: ManagementClient, model: str) -> LiveModel:
    """The model on the server. Raises SlotwiseError where it is not there, or in several versions."""
    if not is_registered(client, model):
        raise SlotwiseError(f"there is no model {model!r} on the server", "`slotwise register` brings the first archive")
    versions = client.describe_all(model)
    if len(versions) > 1:
        names = ", ".join(sorted(live.version for live in versions))
        hint = f"a roll-out replaces the model as a whole: `slotwise unregister {model} --version VERSION` first"
        raise SlotwiseError(f"{model} has {len(versions)} versions ({names})", hint)
    return versions[0]


def _carried_out(client: ManagementClient, share: CanaryShare, plan: RolloutPlan, say: Say) -> str:
    """Register the new archive, go through the steps, and take over. At the end, however it comes, MODEL--new goes."""
    new, after = share.record.new, share.record.after
    try:
        share.write()  # first, so that whoever finds MODEL--new knows what it is
        say(f"registering {after['archive']} as {new}")
        register_ready(client, new, after)
        outcome = _steps(client, share, plan, say)
        if not plan.shadow:
            take_over(client, share, after, say)
        return outcome
    finally:
        with interrupts.held():
            withdraw(client, share, say)


def _steps(client: ManagementClient, share: CanaryShare, plan: RolloutPlan, say: Say) -> str:
    """Go from step to step. Raises RolloutRejected."""
    model, new = share.record.model, share.record.new
    judge, seen, unsuited = Judge(), dict[tuple[str, int], int](), False
    for step in plan.steps:
        _same_workers(client, share.record)
        share.write(percent=plan.percent(step))
        judge.begin_step()
        say(f"{plan.percent(step):g}% of the requests {'are copied' if plan.shadow else 'go'} to {new}")
        ends, waiting = time.monotonic() + plan.for_s, False
        while True:
            time.sleep(POLL_S)
            counted = share.counted()
            _weigh(judge, counted, seen)
            if counted.get("unsuited") and not unsuited:
                say(f"requests of the Open Inference Protocol stay at the old archive: {new} takes or gives something else")
                unsuited = True
            if counted.get("uncopied"):
                why = "with its hedge = false, or the front's --no-hedge, none is copied"
                raise SlotwiseError(f"requests to {model} must not be sent twice: {why}", "leave --shadow out")
            judged = judge.judgement()
            if judged.worse:
                raise RolloutRejected(
                    f"{new} is worse, and everything is as it was: {judged.worse}", "its worker's log may say why"
                )
            over = time.monotonic() >= ends
            if over and judged.enough:
                break
            if over and not waiting:
                say(f"{judge.so_far()} were compared at this step: waiting for more")
                waiting = True
    return agreement(counted) if plan.shadow else f"{model} is the new archive now; at no step was it worse"


def _weigh(judge: Judge, counted: Mapping[str, Any], seen: dict[tuple[str, int], int]) -> None:
    """Have the judge see the windows that it has not seen. seen: the last number of each gateway, which may die meanwhile."""
    counted_by = (counted["counted_by"], counted["owner"])
    for window in counted["windows"]:
        if window["number"] > seen.get(counted_by, 0):
            judge.add(window)
            seen[counted_by] = window["number"]


def _same_workers(client: ManagementClient, record: RolloutRecord) -> None:
    """Give the new archive as many workers as the model has by now: somebody may have scaled that."""
    new, workers = client.describe(record.new), len(client.describe(record.model).workers)
    if new.scaled_there:
        return
    if workers and workers != len(new.workers):
        client.scale(record.new, workers)
        client.wait_ready(record.new, workers)
