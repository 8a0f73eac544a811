"""Bring a running server to a profile: scale what can be scaled, restart for the rest, go back where that fails.

Behind a running gateway nothing is restarted: a second server is started beside the first, and the gateway switches over
without losing a request (slotwise.gateway.swap). Both ways use the same three steps: `start_ready`, `stop`, and what was
registered, read beforehand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotwise import project
from slotwise.client.management import ManagementClient
from slotwise.deploy import deploy
from slotwise.deploy.drift import DesiredState, Difference, ObservedState
from slotwise.errors import SlotwiseError
from slotwise.gateway import process, swap
from slotwise.server import lifecycle

if TYPE_CHECKING:
    from slotwise.archive.build import ArchiveInfo
    from slotwise.profiles.ports import Ports
    from slotwise.server.record import ServerRecord

Say = Callable[[str], None]
Registrations = Sequence[tuple["ArchiveInfo", Mapping[str, Any]]]


def carry_out(state: ObservedState, declared: DesiredState, differences: Sequence[Difference], say: Say) -> ServerRecord:
    """Make the live state the declared one; returns the record of the server that serves afterwards.

    Raises SlotwiseError where the new profile does not come up; the old one, with its models, serves again then.
    """
    if any(difference.needs == "restart" for difference in differences):
        return replace(state, declared, say)
    scale(state, declared, differences, say)
    return state.record


def scale(state: ObservedState, declared: DesiredState, differences: Sequence[Difference], say: Say) -> None:
    """Change numbers of workers while the server serves, and wait until just these are READY.

    What is registered later follows the declared numbers, too: they become what the server was started with.
    """
    with ManagementClient(state.record) as client:
        for change in differences:
            if change.model is None or change.needs != "scale":
                continue
            say(f"scaling {change.model} {change.version} to {change.declared} workers")
            client.scale(change.model, change.declared, change.version)
            client.wait_ready(change.model, change.declared, version=change.version)
    record = dataclasses.replace(state.record, overrides=dict(declared.overrides))
    (record.state_dir / "profile.json").write_text(declared.profile.model_dump_json(indent=2), "utf-8")
    record.save(project.state_dir(record.name))


def replace(state: ObservedState, declared: DesiredState, say: Say) -> ServerRecord:
    """A server with the declared profile in the old one's place: by a switch behind the gateway, else by a restart."""

    def start_declared(name: str, ports: Ports) -> ServerRecord:
        return start_ready(name, declared, ports, state, new_plan(state, declared), say)

    if process.running(state.record.name) is not None:
        return swap.swap(state.record, start_declared, say)
    return restart(state, start_declared, say)


def restart(state: ObservedState, start_new: Callable[[str, Ports], ServerRecord], say: Say) -> ServerRecord:
    """Stop the old server, start the new one on its ports; where that fails, start the old one again as it was."""
    old = state.record
    say(f"stopping {old.kind} with the profile {state.told.name}")
    lifecycle.stop(old)
    try:
        return start_new(old.name, old.ports)
    except BaseException as failed:
        say(f"going back to the profile {state.told.name}")
        before = DesiredState(state.told, old.overrides, old.kind)
        try:
            start_ready(old.name, before, old.ports, state, old_plan(state), say)
        except SlotwiseError as error:
            raise SlotwiseError(
                f"the new profile did not come up ({failed}), nor did the old one: {error.message}", error.hint
            ) from failed
        if isinstance(failed, SlotwiseError):
            raise SlotwiseError(
                f"the profile did not come up, {state.told.name} serves again: {failed.message}", failed.hint
            ) from failed
        raise


def start_ready(
    name: str, declared: DesiredState, ports: Ports, state: ObservedState, plan: Registrations, say: Say
) -> ServerRecord:
    """Start a server, register the plan's models and wait until all their workers are READY.

    Raises SlotwiseError, with nothing of it left running, where one does not become READY.
    """
    profile, api = declared.profile, declared.profile.model_api or declared.kind == "mms"
    models = None if api else deploy.preloaded([info for info, _ in plan], profile, declared.overrides)
    say(f"starting {declared.kind} with the profile {profile.name}")
    record = lifecycle.start(
        name,
        declared.kind,
        profile,
        model_store=state.record.model_store,
        ports=ports,
        overrides=declared.overrides,
        models=models,
    )
    try:
        with ManagementClient(record) as client:
            for info, settings in plan:
                say(f"registering {info.name} {info.version}")
                deploy.deploy(client, info, settings, preloaded=not api)
    except BaseException:
        lifecycle.stop(record)
        raise
    return record


def new_plan(state: ObservedState, declared: DesiredState) -> Registrations:
    """Every model that is registered now, as the declared profile wants it."""
    return [(model.info, declared.registration(model.info)) for model in state.models]


def old_plan(state: ObservedState) -> Registrations:
    """Every model that is registered now, as it is."""
    return [(model.info, model.settings(state.told_of_model(model.info))) for model in state.models]
