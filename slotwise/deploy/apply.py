"""Bring a running server to a profile: scale what can be scaled, restart for the rest, go back where that fails.

Behind a running gateway nothing is restarted: a second server is started beside the first, and the gateway switches over
without losing a request (slotwise.frontend.rollout.swap). Both ways read beforehand what is registered, and both use
`start_ready` and `stop`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotwise.client.management import ManagementClient
from slotwise.deploy import deploy, scaling
from slotwise.deploy.drift import DeployedModel, DesiredState, Difference, ObservedState, live_models
from slotwise.deploy.shares import share_cores
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import written_whole
from slotwise.frontend import process
from slotwise.frontend.rollout import swap
from slotwise.frontend.rollout.record import need_none as need_no_rollout
from slotwise.server import lifecycle
from slotwise.worker.environment.cores import available_cores

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.profiles.ports import Ports
    from slotwise.server.record import ServerRecord

Say = Callable[[str], None]
Registrations = Sequence[tuple[DeployedModel, Mapping[str, Any]]]


def carry_out(
    state: ObservedState, desired: DesiredState, differences: Sequence[Difference], say: Say, *, force: bool = False
) -> ServerRecord:
    """Bring the server from its observed state to the desired one; returns the record of the server that serves afterwards.

    Raises SlotwiseError where the declared numbers of workers do not fit here (force: they are tried all the same), where a
    roll-out goes on, and where the new profile does not come up; the old one, with its models, serves again then.
    """
    for model in () if force else state.models:
        scaling.check_scaling(model.live, desired.registration(model.info)["initial_workers"])
    if any(difference.needs == "restart" for difference in differences):
        need_no_rollout(state.record.name)
        return replace(state, desired, say)
    scale(state, desired, differences, say)
    return state.record


def scale(state: ObservedState, desired: DesiredState, differences: Sequence[Difference], say: Say) -> None:
    """Change numbers of workers while the server serves, and wait until just these are READY.

    The desired profile becomes the one that the server was started with, so that models which are registered later get its
    number of workers, too.
    """
    record = dataclasses.replace(state.record, overrides=dict(desired.overrides))
    with written_whole(record.state_dir / "profile.json") as profile:  # first: a full disk changes nothing
        profile.write_text(desired.profile.model_dump_json(indent=2), "utf-8")
        record.save(project.state_dir(record.name))
    with ManagementClient(state.record) as client:
        for change in differences:
            if change.model is None or change.needs != "scale":
                continue
            say(f"scaling {change.model} {change.version} to {change.declared} workers")
            scaling.scale(client, change.model, change.declared, change.version, force=True)  # it was checked before


def replace(state: ObservedState, desired: DesiredState, say: Say) -> ServerRecord:
    """Put a server with the desired profile in the old one's place: by a switch behind the gateway, else by a restart."""

    registrations = new_registrations(state, desired)
    _preloaded(desired, registrations)  # what cannot be is said before anything ends

    def start_declared(name: str, ports: Ports) -> ServerRecord:
        return start_ready(name, desired, ports, state, registrations, say)

    def start_beside(name: str, ports: Ports) -> ServerRecord:
        record = start_declared(name, ports)
        check_same_models(state)
        return record

    if process.running(state.record.name) is not None:
        return swap.swap(state.record, start_beside, say)
    check_same_models(state)  # a person may have thought for long about the answer
    return restart(state, start_declared, say)


def check_same_models(state: ObservedState) -> None:
    """Raise SlotwiseError where models have come or gone, or another version is the default, since the state was read.

    A new server would undo that. One that does not answer any more says nothing against it.
    """

    def registered(lives: Iterable[LiveModel]) -> tuple[dict[str, str], set[tuple[str, str, str]]]:
        every = [(live.name, live.version, live.archive) for live in lives]
        return {name: version for name, version, _ in reversed(every)}, set(every)

    try:
        with ManagementClient(state.record) as client:
            now = registered(live_models(client))
    except SlotwiseError:
        return
    if now != registered(model.live for model in state.models):
        raise SlotwiseError("models came, went or became the default ones meanwhile: nothing was changed", "apply it again")


def restart(state: ObservedState, start_new: Callable[[str, Ports], ServerRecord], say: Say) -> ServerRecord:
    """Stop the old server, start the new one on its ports; where that fails, start the old one again as it was."""
    old = state.record
    say(f"stopping {old.kind} with the profile {state.started_with.name}")
    lifecycle.stop(old)
    try:
        return start_new(old.name, old.ports)
    except BaseException as failed:
        say(f"going back to the profile {state.started_with.name}")
        before = DesiredState(state.started_with, old.overrides, old.kind)
        try:
            start_ready(old.name, before, old.ports, state, old_registrations(state), say)
        except SlotwiseError as error:
            raise SlotwiseError(
                f"the new profile did not come up ({failed}), nor did the old one: {error.message}", error.hint
            ) from failed
        if isinstance(failed, SlotwiseError):
            raise SlotwiseError(
                f"the profile did not come up, {state.started_with.name} serves again: {failed.message}", failed.hint
            ) from failed
        raise


def start_ready(
    name: str, desired: DesiredState, ports: Ports, state: ObservedState, registrations: Registrations, say: Say
) -> ServerRecord:
    """Start a server, register the models and wait until all their workers are READY.

    Raises SlotwiseError, with nothing of it left running, where one does not become READY.
    """
    profile, models = desired.profile, _preloaded(desired, registrations)
    names = list(dict.fromkeys(model.info.name for model, _ in registrations))
    say(f"starting {desired.kind} with the profile {profile.name}")
    for variable, value in state.record.logged.items():  # it writes its logs as before
        os.environ.setdefault(variable, value)
    record = lifecycle.start(
        name,
        desired.kind,
        profile,
        model_store=state.record.model_store,
        ports=ports,
        overrides=desired.overrides,
        models=models,
        cluster=state.record.cluster,
        expected=[model.live.name for model, _ in registrations],
        shares=share_cores(names, available_cores(), state.record.shares) if len(names) > 1 else {},
    )
    try:
        with ManagementClient(record) as client:
            for model, settings in registrations:
                say(f"registering {model.live.name} {model.info.version}")
                deploy.deploy(client, model.info, settings, name=model.live.name, preloaded=models is not None)
    except BaseException:
        lifecycle.stop(record)
        raise
    return record


def _preloaded(desired: DesiredState, registrations: Registrations) -> dict[str, Any] | None:
    """What the server loads at its start; None where it takes registrations."""
    if desired.profile.takes_registrations(desired.kind):
        return None
    infos, names = [model.info for model, _ in registrations], [model.live.name for model, _ in registrations]
    return deploy.preloaded(infos, desired.profile, desired.overrides, names)


def new_registrations(state: ObservedState, desired: DesiredState) -> Registrations:
    """Every model that is registered now, with the settings of the desired profile."""
    return [(model, desired.registration(model.info)) for model in state.models]


def old_registrations(state: ObservedState) -> Registrations:
    """Every model that is registered now, with the settings that it has."""
    return [(model, model.settings(state.started_with_of_model(model.info))) for model in state.models]
