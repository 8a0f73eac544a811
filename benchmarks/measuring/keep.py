"""What `slotwise tune` and `slotwise bench` measured, with all that a figure of the docs has to name."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.measuring.about import about
from benchmarks.measuring.run import write
from benchmarks.measuring.servers import server
from slotwise.console import say

WITH_SERVER = ("tune",)  # these commands ask one that runs
UNTRAINED = ("resnet18", "ants_bees")  # weights and pictures would have to be downloaded
CLI = (sys.executable, "-m", "slotwise.cli")


def run(command: str, work: Path, target: Path) -> bool:
    """Run a `slotwise` command about a model, which is built first, and keep what it prints. Whether it ran.

    Where it asks a server, there is a TorchServe whose state is below `work`.
    """
    _, *words = shlex.split(command)
    printed, began = work / "printed.json", time.monotonic()
    with server(work) if words[0] in WITH_SERVER else nullcontext(), printed.open("wb") as output:
        weights = ["--weights", "none"] if words[1] in UNTRAINED else []
        subprocess.run([*CLI, "build", words[1], *weights], stdout=sys.stderr, check=True)
        say(command)
        good = subprocess.run([*CLI, *words, "--json"], stdout=output, check=False).returncode == 0
    if good:
        took = {"minutes": round((time.monotonic() - began) / 60, 1)}
        write(printed, {**json.loads(printed.read_text("utf-8")), **took})
        keep([printed], target, command)
    return good


def keep(files: Sequence[Path], target: Path, command: str = "") -> None:
    """Write one JSON of the files: their loads one after the other, everything else as the last one has it.

    To be called on the machine and the commit that were measured: they are taken from here.
    """
    each = [json.loads(file.read_text("utf-8")) for file in files]
    together = {key: value for part in each for key, value in part.items() if key != "report"}  # a path of this machine
    loads = [load for part in each for load in part.get("loads", [])]
    command = command or together.get("command", "")
    if not command:
        raise SystemExit("error: which command measured it? --command says so")
    known = about(command)
    result = {**together, **known, "machine": {**together.get("machine", {}), **known["machine"]}}
    write(target, {**result, "loads": loads} if loads else result)
