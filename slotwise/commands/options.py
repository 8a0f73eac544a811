"""The options and arguments that several commands share, and what their texts mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

ServerKind = Literal["torchserve", "mms", "ray", "triton", "slotwise"]

Name = Annotated[str, typer.Option(help="The server's name.")]
Profile = Annotated[str, typer.Option(help="A profile's name, or a .toml file.")]
ProfileName = Annotated[str, typer.Argument(help="A profile's name, or a .toml file.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: override a key of the profile; repeatable.")]
Force = Annotated[bool, typer.Option("--force", help="Start more workers than the cores and the memory hold.")]
ModelFolder = Annotated[str, typer.Argument(help="A model's name, or a folder that holds a model.toml.")]
ModelOrArchive = Annotated[str, typer.Argument(help="A model's name, folder or archive.")]
Body = Annotated[
    list[Path] | None, typer.Option(help="A file to send, or a folder of them; repeatable. Default: the model's examples.")
]
Poison = Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of requests that are bad on purpose, e.g. 0.03.")]
Tool = Annotated[Literal["slotwise", "wrk", "ab"], typer.Option(help="Measure with this program.")]


def pairs(settings: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict; a usage error otherwise."""
    for setting in settings or ():
        if "=" not in setting:
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
    return dict(setting.split("=", 1) for setting in settings or ())


def overridden(settings: Sequence[str] | None) -> dict[str, str]:
    """The keys of a profile that the environment and `--set` override."""
    from slotwise.profiles.variables import from_environment

    return {**from_environment(os.environ), **pairs(settings)}


def counts(text: str, option: str) -> list[int]:
    """`1,8,32` as numbers; a usage error otherwise."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32", param_hint=option)
    return numbers
