"""A model becomes its new archive while MODEL--new has its requests; and a roll-out ends, also one that was interrupted.

    take_over   everything to MODEL--new -> MODEL is unregistered -> MODEL is registered from the new archive and READY
    withdraw    everything to MODEL -> MODEL--new is unregistered -> the record goes
    settle      both, as far as they are still to be done, for a roll-out whose process was killed

At every moment one of the two is registered and has a READY worker, and the gateway sends requests to that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotwise.deploy.canary_share import CanaryShare
from slotwise.errors import SlotwiseError
from slotwise.frontend.rollout.record import interrupted, only_one
from slotwise.worker.environment.digests import file_sha256

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel
    from slotwise.client.management import ManagementClient
    from slotwise.frontend.rollout.record import RolloutRecord

Say = Callable[[str], None]
Registration = Mapping[str, Any]  # `archive`, and the settings to register it with


def registration_of(live: LiveModel, response_timeout: int | None) -> dict[str, Any]:
    """What registers a model again as it is. response_timeout: where the server does not say which it has."""
    return {
        "archive": live.archive.rpartition("/")[2],
        "batch_size": live.batch_size,
        "max_batch_delay": live.max_batch_delay,
        "initial_workers": len(live.workers),
        "response_timeout": live.response_timeout or response_timeout,
    }


def register_ready(client: ManagementClient, name: str, registration: Registration) -> None:
    """Register a model, and wait until its workers are READY. Raises SlotwiseError."""
    settings = dict(registration)
    client.register(settings.pop("archive"), name=name, **settings)
    client.wait_ready(name, settings["initial_workers"])


def is_registered(client: ManagementClient, name: str) -> bool:
    """Whether the server has the model."""
    return name in {listed.name for listed in client.list()}


def take_over(client: ManagementClient, share: CanaryShare, after: Registration, say: Say) -> None:
    """Register the model itself as `after`, with as many workers as it has now, while `new` has every request.

    Raises SlotwiseError, also where `after` is not what was compared by now; then the model is as it was, where that can be.
    """
    model, before = share.record.model, dict(share.record.before)
    _check_compared(client, share.record)
    share.write(phase="replacing", percent=100.0)
    if is_registered(client, model):
        share.drain(model)
        now = client.describe(model)
        if now.ready_workers:  # it may have been scaled since
            before["initial_workers"] = len(now.workers)
            after = {**after, "initial_workers": len(now.workers)}
        client.unregister(model)
    say(f"{model} becomes {after['archive']}")
    try:
        register_ready(client, model, after)
        _check_runs(client, share.record, model)  # the file may have changed since it was looked at
    except BaseException:
        with suppress(SlotwiseError):
            client.unregister(model)
        register_ready(client, model, before)
        raise


def _check_compared(client: ManagementClient, record: RolloutRecord) -> None:
    """Raise SlotwiseError where the file is not, or `new` does not run, the archive that the roll-out began with."""
    file = client.record.model_store / str(record.after["archive"])
    if record.sha256 and not (file.is_file() and file_sha256(file) == record.sha256):
        raise SlotwiseError(f"{file.name} is another archive than the one that was compared", "roll it out from the beginning")
    if is_registered(client, record.new):
        _check_runs(client, record, record.new)


def _check_runs(client: ManagementClient, record: RolloutRecord, name: str) -> None:
    """Raise SlotwiseError where a worker of this model says that it runs another archive."""
    if record.content and client.describe(name).contents - {record.content}:
        raise SlotwiseError(f"{name} runs another archive than the one that was compared", "roll it out from the beginning")


def withdraw(client: ManagementClient, share: CanaryShare, say: Say) -> None:
    """Send everything to the model itself, take `new` away, and end the roll-out; only where the model can answer.

    Where it cannot, or requests are still at `new`, that stays, and a line says what finishes it.
    """
    record = share.record
    try:
        if not _can_answer(client, record):
            raise SlotwiseError(f"{record.model} cannot answer, so {record.new} goes on in its place")
        share.write(phase="leaving", percent=0.0)
        if is_registered(client, record.new):
            share.drain(record.new)
            client.unregister(record.new)
        share.forget()
    except SlotwiseError as error:
        archive = record.after["archive"]
        say(f"{error.message}: `slotwise rollout {record.model} {archive}` finishes or undoes what was begun")


def forget_interrupted(name: str, say: Say) -> None:
    """End the roll-outs that were interrupted and whose server, with all that was registered, has ended as well."""
    for record in interrupted(name):
        with only_one(name, record.model):
            record.forget()
        retry = f"`slotwise rollout {record.model} {record.after.get('archive', 'NEW.mar')}` tries it again"
        say(f"a roll-out of {record.model} was interrupted, and its server has ended: it is undone; {retry}")


def _can_answer(client: ManagementClient, record: RolloutRecord) -> bool:
    """Whether the model is there; where it was being replaced, whether it has a READY worker."""
    if not is_registered(client, record.model):
        return False
    return record.phase != "replacing" or client.describe(record.model).ready_workers > 0


def settle(client: ManagementClient, record: RolloutRecord, say: Say) -> None:
    """Finish or undo a roll-out that was interrupted. Raises SlotwiseError where neither can be done.

    It is finished where the new archive had passed, else undone.
    """
    share = CanaryShare(record.adopted())
    passed = record.phase == "replacing"
    if not passed:  # whatever ends this process, too
        share.record = replace(share.record, after=record.before, sha256="", content="")
    there, new_there = is_registered(client, record.model), is_registered(client, record.new)
    if not there and not new_there:
        say(f"a roll-out of {record.model} was interrupted; the server has neither of its archives any more")
        share.forget()
        return
    finished = False
    if new_there and (passed or not there):
        say(f"a roll-out of {record.model} was interrupted while it was replaced: it is {'finished' if passed else 'undone'}")
        try:
            take_over(client, share, share.record.after, say)
            finished = passed
        except SlotwiseError as error:
            say(f"it cannot be finished: {error.message}")
    withdraw(client, share, say)
    if share.record.file.exists():
        raise SlotwiseError(f"the interrupted roll-out of {record.model} is not settled", "the lines above say why")
    if not finished:
        say(f"an interrupted roll-out of {record.model} to {record.after['archive']} was undone")
