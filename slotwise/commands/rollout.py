"""slotwise rollout: a new archive takes a model's requests over step by step, or goes back by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from slotwise.commands.options import Name
from slotwise.console import Json, emit, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollout")(rollout)


def rollout(
    model: Annotated[str, typer.Argument(help="The model whose requests it is about.")],
    archive: Annotated[str, typer.Argument(metavar="NEW.mar", help="The new archive.")],
    steps: Annotated[str, typer.Option(help="The shares of its requests, in percent.")] = "1,10,50,100",
    for_: Annotated[str, typer.Option("--for", help="How long each step takes at least: 60s, 5m.")] = "60s",
    shadow: Annotated[bool, typer.Option("--shadow", help="Only send copies to the new one, and compare the answers.")] = False,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Bring a new archive to a model's requests; where it is worse, everything goes back, and the exit code is 1."""
    from slotwise.deploy.deploy import obtain, registration
    from slotwise.deploy.rollout import RolloutPlan
    from slotwise.deploy.rollout import rollout as carry_out
    from slotwise.server.lifecycle import need

    server = need(name)
    plan = RolloutPlan(_numbers(steps), _seconds(for_), shadow)
    plan.check()
    server.need_model_api(f"rolling out {archive}, which is registered beside {model},")
    info = obtain(archive, server.model_store, say=say)
    settings = registration(info, server.effective_profile(), server.overrides, server.kind)
    outcome = carry_out(server, model, info, settings, plan, say)
    emit({"model": model, "archive": info.path.name, "outcome": outcome}, as_json, lambda: outcome)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers", param_hint="--steps") from None


def _seconds(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise typer.BadParameter(f"{text!r} is no time such as 60s or 5m", param_hint="--for")
    return seconds
