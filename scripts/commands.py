"""Write docs/commands.md from the command line itself.

python scripts/commands.py             write the page
python scripts/commands.py --check     exit with 1 where the page is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from written_pages import write_or_check

from slotwise.cli import build_app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
INTRODUCTION = """\
# Commands

One command, `slotwise`. Exit code 0 is done, 1 failed (one line and a hint), 2 wrong usage or a target that was not met, 130
stopped by a signal. `--json` prints for programs. `slotwise --home FOLDER COMMAND ...` works in another project folder,
`slotwise --version` prints the release.

This page is written by `python scripts/commands.py`. Correct the texts in the code.

| to | commands |
| --- | --- |
"""
GROUPS = (  # every command once: tests/test_cli.py
    ("[make an archive](archives.md) of [your own model](own-model.md)", "new train build inspect check renew debug"),
    ("[make anybody's archive batch-safe](guard.md)", "guard"),
    ("[leave TorchServe](leaving-torchserve.md), [leave SageMaker](leaving-sagemaker.md)", "migrate torchserve export"),
    (
        "start a server: TorchServe, MMS, [Ray](ray.md), [Triton](triton.md), [our own](host.md)",
        "serve stop ready doctor java-home",
    ),
    ("[operate it](operate.md)", "register unregister scale default list describe token fetch"),
    ("[settings in files](profiles.md)", "profile apply drift"),
    (
        "[the gateway](gateway.md): page, keys, [roll-outs](rollout.md), [a request's way](observe.md)",
        "gateway rollout key top trace",
    ),
    ("[ask](protocols.md), and [measure](bench.md)", "predict demo bench"),
    ("[find settings](tune.md), also [while serving](host.md)", "tune roofline simulate"),
)


def page() -> str:
    """The page."""
    root: Any = typer.main.get_command(build_app())
    lines = [INTRODUCTION.rstrip("\n")]
    for task, names in GROUPS:
        lines.append(f"| {task} | {' '.join(f'[`slotwise {name}`](#slotwise-{name})' for name in names.split())} |")
    for name in " ".join(names for _, names in GROUPS).split():
        command = root.commands[name]
        lines += ["", *described(f"slotwise {name}", command)]
        for inner, below in sorted(getattr(command, "commands", {}).items()):
            lines += ["", *described(f"slotwise {name} {inner}", below, "###")]
    return "\n".join(lines) + "\n"


def described(name: str, command: Any, heading: str = "##") -> Iterator[str]:
    """One command: what it does, how it is called, its options."""
    yield from (f"{heading} {name}", "", " ".join((command.help or "").split()))
    if hasattr(command, "commands"):
        return
    context = command.make_context(name, [], resilient_parsing=True)
    rows = []
    for parameter in command.params:
        if record := parameter.get_help_record(context):  # None: hidden
            left, right = (" ".join(each.split()).replace("|", "\\|") for each in record)
            rows.append(f"| `{left}` | {right} |")
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield from ("", f"    {usage}")
    if rows:
        yield from ("", "| | |", "| --- | --- |", *rows)


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page()}, __doc__ or "", "python scripts/commands.py"))
