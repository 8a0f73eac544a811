"""apply and drift: bring a running server to a profile, and compare the two."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotwise.commands.options import Force, Name, ProfileName, ServerKind, Set, overridden
from slotwise.console import Json, emit, say

if TYPE_CHECKING:
    from slotwise.deploy.drift import DesiredState, Difference, ObservedState

Server = Annotated[ServerKind | None, typer.Option(help="Change to this server (default: the one that runs).")]
ComparedServer = Annotated[ServerKind | None, typer.Option(help="Compare with this server (default: the one that runs).")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(apply)
    app.command()(drift)


def apply(
    profile: ProfileName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Restart without asking where that is needed.")] = False,
    set_: Set = None,
    server: Server = None,
    force: Force = False,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Bring a running server to a profile: scale its workers, or restart it with its models; go back where that fails."""
    from slotwise.deploy.apply import carry_out
    from slotwise.deploy.drift import differences

    state, desired = _compare(name, profile, set_, server)
    different = differences(state, desired)
    if different:
        if not as_json:
            typer.echo("\n".join(str(difference) for difference in different))
        _ask(state, different, yes)
        carry_out(state, desired, different, say, force=force)
        state, desired = _compare(name, profile, set_, server)
    emit(
        {**_as_json(state, desired, different), "applied": bool(different)},
        as_json,
        lambda: _say(state, f"{profile} holds" if different else "nothing to change"),
    )


def drift(
    profile: ProfileName,
    set_: Set = None,
    server: ComparedServer = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Show where a running server differs from a profile; exit with 1 if it does."""
    from slotwise.deploy.drift import differences

    state, desired = _compare(name, profile, set_, server)
    different = differences(state, desired)
    text = "\n".join(str(difference) for difference in different) or "no difference"
    emit(_as_json(state, desired, different), as_json, lambda: _say(state, text))
    if different:
        raise typer.Exit(1)


def _compare(name: str, profile: str, set_: list[str] | None, server: ServerKind | None) -> tuple[ObservedState, DesiredState]:
    from slotwise.deploy.drift import DesiredState, read
    from slotwise.server.lifecycle import need

    record = need(name)
    return read(record), DesiredState.load(profile, overridden(set_), server or record.kind)


def _ask(state: ObservedState, different: list[Difference], yes: bool) -> None:
    """Ask before a restart. A change that needs scaling only is made without a question."""
    from slotwise.errors import SlotwiseError
    from slotwise.frontend import process

    if yes or all(difference.needs == "scale" for difference in different):
        return
    gateway = process.running(state.record.name) is not None
    how = (
        "a second server is started and the gateway switches over; no request is lost"
        if gateway
        else "the server is restarted: what it is working on is lost, and until it is READY it refuses requests"
    )
    say(how)
    if not sys.stdin.isatty():
        raise SlotwiseError("nothing was changed: this needs a yes", "add --yes")
    if not typer.confirm("go on?", err=True):  # stdout is for the answer
        raise SlotwiseError("nothing was changed", "`slotwise drift` shows what differs")


def _as_json(state: ObservedState, desired: DesiredState, different: list[Difference]) -> dict[str, Any]:
    from dataclasses import asdict

    facts = {"server": state.record.name, "profile": desired.profile.name}
    return {**facts, "differences": [asdict(one) for one in different], "notes": _notes(state)}


def _say(state: ObservedState, text: str) -> None:
    typer.echo("\n".join([text, *(f"note: {note}" for note in _notes(state))]))


def _notes(state: ObservedState) -> list[str]:
    from slotwise.deploy.drift import notes
    from slotwise.worker.environment.cores import available_cores

    return notes(state, available_cores())
