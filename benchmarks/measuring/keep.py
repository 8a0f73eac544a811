"""What `slotwise tune` and `slotwise bench` measured, with all that a figure of the docs has to name."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.measuring.about import about
from benchmarks.measuring.run import write
from benchmarks.measuring.servers import server

WITH_SERVER = ("tune",)  # these commands ask one that runs
UNTRAINED = ("resnet18", "ants_bees")  # weights and pictures would have to be downloaded
CLI = (sys.executable, "-m", "slotwise.cli")


def printed_by(command: str, work: Path) -> dict[str, Any]:
    """What a `slotwise` command about a model prints, which is built first. Raises RuntimeError where it fails.

    Where it asks a server, there is a TorchServe whose state is below `work`.
    """
    _, *words = shlex.split(command)
    weights = ["--weights", "none"] if words[1] in UNTRAINED else []
    with server(work) if words[0] in WITH_SERVER else nullcontext():
        for asked in (["build", words[1], *weights], [*words, "--json"]):
            done = subprocess.run([*CLI, *asked], stdout=subprocess.PIPE, check=False)
            if done.returncode:
                raise RuntimeError(f"slotwise {shlex.join(asked)} ended with {done.returncode}")
    return {**_told(json.loads(done.stdout)), "command": command}


def keep(files: Sequence[Path], target: Path, command: str = "") -> None:
    """Write one JSON of the files: their loads one after the other, everything else as the last one has it.

    To be called on the machine and the commit that were measured: they are taken from here.
    """
    each = [json.loads(file.read_text("utf-8")) for file in files]
    together = {key: value for part in each for key, value in _told(part).items()}
    loads = [load for part in each for load in part.get("loads", [])]
    command = command or together.get("command", "")
    if not command:
        raise SystemExit("error: which command measured it? --command says so")
    known = about(command)
    result = {**together, **known, "machine": {**together.get("machine", {}), **known["machine"]}}
    write(target, {**result, "loads": loads} if loads else result)


def _told(printed: dict[str, Any]) -> dict[str, Any]:
    """All of it but a path of this machine."""
    return {key: value for key, value in printed.items() if key != "report"}
