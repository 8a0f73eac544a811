"""torchserve: TorchServe's own command line, on our own host."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    words = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command("torchserve", context_settings=words)(torchserve)


def torchserve(context: typer.Context) -> None:
    """TorchServe's command line, word for word, served without Java: torchserve --start --model-store STORE --models all."""
    from slotwise.drop_in.command_line import run

    raise typer.Exit(run(context.args))
