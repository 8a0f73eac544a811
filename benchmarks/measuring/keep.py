"""What a `slotwise` command about a model measures, for a figure of the docs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
    told = json.loads(done.stdout)
    told.pop("report", None)  # a path of this machine
    return {**told, "command": command}
