"""Instructions that a request costs the worker beside its model, counted by callgrind (Debian's valgrind).

A count has less noise than a time, but it has some: each is the median of several.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from slotwise.console import say

PROGRAM = Path(__file__).with_name("idle_pipeline.py")
FEW, REQUESTS, REPEATS = 20, 3200, 3  # batches that are counted off as the start; requests that are counted after them


def compare(trees: dict[str, Path], batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """For each size of batch and tree the instructions a request, of each repeat, in turns."""
    rows = []
    for n in batches:
        counted: dict[str, list[int]] = {who: [] for who in trees}
        many = FEW + REQUESTS // n
        for _ in range(REPEATS):
            for who, tree in trees.items():
                counted[who].append((_counted(tree, n, many) - _counted(tree, n, FEW)) // ((many - FEW) * n))
        share = median(counted["now"]) / median(counted["before"])
        say(f"batches of {n}: {counted} instructions a request, {share:.3f} of before")
        rows.append({"n": n, "instructions": counted, "ratio": share})
    return rows


def _counted(tree: Path, n: int, batches: int) -> int:
    """All instructions of the program from its start to its end."""
    count = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [sys.executable, str(PROGRAM), str(tree), str(n), str(batches)]
    run = subprocess.run(
        [*count, *command], env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True
    )
    found = re.search(r"Collected : (\d+)", run.stderr)
    assert found is not None, run.stderr
    return int(found[1])
