"""Command lines made up from the command line's own grammar: right and wrong words, types, folders, ports and options."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import typer

from slotwise.cli import build_app

WORDS = (
    *("faults", "quick", "faults.mar", "mnits", "", "../x", "model_store/none.mar", "model_store/cut.mar", "folder.mar", "own"),
    *(
        "ümlaut",
        "a b",
        "-",
        "--",
        "/etc/passwd",
        "/proc/x/y",
        "0",
        "x" * 300,
        "list.toml",
        "http://127.0.0.1:1/x.mar",
        "1.0",
        ".",
    ),
)
NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "8080",
    "32001",
    "999",
    "1e9",
    "ten",
    "",
    "99999999999999999999",
    "0.5",
    "nan",
    "inf",
    "1,2",
    "1,x",
)
SETTINGS = ("batch_size=4", "batch_sise=4", "engine=none", "=", "x", "initial_workers=500", "model_api=maybe", "heap_mb=1")
HOMES = (".", "nowhere", "/proc", "ümlaut")
LONG = ("doctor", "roofline")  # they take their time however they are called


def commands() -> dict[str, Any]:
    """Every command by its full name."""

    def below(group: Any, name: str) -> dict[str, Any]:
        subcommands = getattr(group, "commands", None)
        if subcommands is None:
            return {name: group}
        return {full: one for key, sub in subcommands.items() for full, one in below(sub, f"{name} {key}".strip()).items()}

    return below(typer.main.get_command(build_app()), "")


def line(chance: Random, known: dict[str, Any]) -> list[str]:
    """One command line; about one in three could work."""
    name = chance.choice([one for one in known if one not in LONG or chance.random() < 0.3])
    arguments = name.split()
    for parameter in known[name].params:
        if parameter.param_type_name == "option":
            if chance.random() < 0.15 and "--help" not in parameter.opts:
                arguments += option(chance, parameter)
        elif parameter.required or chance.random() < 0.4:
            count = chance.choice((1, 1, 1, 2)) if parameter.nargs == -1 else 1
            arguments += [chance.choice(WORDS) for _ in range(0 if chance.random() < 0.1 else count)]
    if chance.random() < 0.05:
        arguments.append(chance.choice(("--no-such-option", "--json=x", "extra")))
    if name == "serve":
        arguments += ["--port", "0"]
    home = ["--home", chance.choice(HOMES)] if chance.random() < 0.1 else []
    return [*home, *(argument.replace("\0", "") for argument in arguments)]


def option(chance: Random, parameter: Any) -> list[str]:
    """One option with a value that fits, or one that does not."""
    name = parameter.opts[0]
    if parameter.is_flag:
        return [name]
    if name == "--set":
        return [name, chance.choice(SETTINGS)]
    kind = str(getattr(parameter, "type_descriptor", ""))
    choices = re.findall(r"'(\w+)'", kind) if "Literal[" in kind else []
    if choices and chance.random() < 0.7:
        return [name, chance.choice(choices)]
    numeric = "'int'" in kind or "'float'" in kind
    return [name, chance.choice(NUMBERS if numeric and chance.random() < 0.8 else WORDS)]
