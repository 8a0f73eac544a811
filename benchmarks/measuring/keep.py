"""What `slotwise tune` and `slotwise bench` measured, with all that a figure of the docs has to name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.about import about
from benchmarks.measuring.run import write


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
