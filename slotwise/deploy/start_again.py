"""Start a server again as it was: the same profile, ports and models, under the same names and with the same settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import of_model, preloaded
from slotwise.deploy.drift import DeployedModel, deployed
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held, let_through
from slotwise.server import lifecycle

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import ServerRecord

Say = Callable[[str], None]
T = TypeVar("T")


def start_again(record: ServerRecord, lives: Iterable[LiveModel], say: Say) -> ServerRecord:
    """Stop what is left of the server, start it again and register these models; returns its new record.

    lives: of each model the default version first. A version whose archive is gone is left out, one whose archive is another by
    now serves that, and one that does not become ready stays registered: `say` tells of each. Without its default version a
    model does not come back at all. Raises SlotwiseError where the server itself does not start.
    """
    profile = record.effective_profile()
    models = _deployed(record, lives, say)
    can_register = profile.takes_registrations(record.kind)
    infos, names = [model.info for model in models], [model.live.name for model in models]
    loaded = None if can_register else preloaded(infos, profile, record.overrides, names)
    lifecycle.stop(record)
    with held():
        started = lifecycle.start(
            record.name,
            record.kind,
            profile,
            model_store=record.model_store,
            ports=record.ports,
            overrides=record.overrides,
            models=loaded,
            shares=record.shares,
            cluster=record.cluster,
            expected=names,
        )
        try:
            with let_through():
                _register(started, models, profile, can_register, say)
        except BaseException:
            lifecycle.stop(started)
            raise
    return started


def _bring_back(models: Iterable[T], live_of: Callable[[T], LiveModel], bring: Callable[[T], None], say: Say) -> None:
    """Bring each version back; where the default one cannot be, none of its model: another would answer in its place."""
    there, lost = set[str](), set[str]()
    for model in models:
        live = live_of(model)
        try:
            if live.name in lost:
                raise SlotwiseError("it is not the default version, and would be now")
            bring(model)
            there.add(live.name)
        except SlotwiseError as error:
            say(f"{live.name} {live.version} is left out: {error.message}")
            lost |= {live.name} - there


def _deployed(record: ServerRecord, lives: Iterable[LiveModel], say: Say) -> list[DeployedModel]:
    found = list[DeployedModel]()

    def bring(live: LiveModel) -> None:
        model = deployed(record, live)
        if ran := model.ran_another:
            file, now = model.info.path.name, model.info.content[:12]
            say(f"{live.name} {live.version} serves another archive than it ran: {file} holds {now} now, not {ran[:12]}")
        found.append(model)

    _bring_back(lives, lambda live: live, bring, say)
    return found


def _register(record: ServerRecord, models: list[DeployedModel], profile: Profile, can_register: bool, say: Say) -> None:
    with ManagementClient(record) as client:
        there = list[DeployedModel]()

        def bring(model: DeployedModel) -> None:
            if can_register:
                own = of_model(model.info, profile, record.overrides, record.kind)
                client.register(model.info.path.name, name=model.live.name, **model.settings(own))
            there.append(model)

        _bring_back(models, lambda model: model.live, bring, say)
        for model in there:
            live = model.live
            try:
                client.wait_ready(live.name, len(live.workers), version=live.version or None)
                say(f"{live.name} {live.version} serves again: {len(live.workers)} worker(s)")
            except SlotwiseError as error:
                say(f"{live.name} does not serve again: {error.message}")
