"""Run the tests of the worker, the archives and the check, and print how much of each room they reach.

    python scripts/coverage_by_room.py                                  those that start no server
    python scripts/coverage_by_room.py tests -n 2 -m "not long"         all tests, in hours

Exit code 1 where a test fails, or where they take fewer than LEAST of the worker's branches. Processes that tests start count,
too, also where they run an archive's copy of the worker (coverage_copies.py), and where their host kills them
(coverage_kills.py). Not counted are copies of an earlier release, and processes that kill themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEAST = {"worker": 0.95}  # of the branches
LISTED = 60  # files of the worker that lack most
SETTINGS = """
[run]
branch = true
parallel = true
sigterm = true
plugins = scripts.coverage_copies
patch =
    subprocess
    _exit
include =
    {root}/slotwise/*
    */_slotwise_guard/*
data_file = {folder}/data
[paths]
worker =
    {root}/slotwise/worker
    */slotwise/worker
    */_slotwise_guard
[report]
exclude_also =
    if TYPE_CHECKING:
    class .*Protocol
"""


def main(arguments: list[str]) -> int:
    """Measure and print; the exit code. arguments: pytest's, in place of the usual choice."""
    chosen = arguments or [
        "tests/worker",
        "tests/archive",
        "tests/check",
        "-n",
        "2",
        "-m",
        "not server and not slow and not long",
    ]
    with tempfile.TemporaryDirectory(prefix="coverage-") as name:
        folder = Path(name)
        (folder / "rc").write_text(SETTINGS.format(folder=folder, root=ROOT), "utf-8")
        coverage = (sys.executable, "-m", "coverage")
        settings = f"--rcfile={folder / 'rc'}"
        pytest = ("-m", "pytest", "-q", "-p", "scripts.coverage_kills", *chosen)
        tests = subprocess.run((*coverage, "run", settings, *pytest), cwd=ROOT)
        subprocess.run((*coverage, "combine", settings, "--quiet", folder), cwd=ROOT, check=True)
        written = ("json", settings, "--quiet", "--ignore-errors", "-o", folder / "report.json")
        subprocess.run((*coverage, *written), cwd=ROOT, check=True)
        files = json.loads((folder / "report.json").read_text("utf-8"))["files"]
    low = show(by_room(files), files)
    return tests.returncode or int(low)


def by_room(files: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The counts of lines and branches, those that were reached and all of them, by the folder below slotwise/."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path, found in files.items():
        parts = Path(path).parts
        if "slotwise" not in parts:
            continue
        inside = parts[len(parts) - 1 - parts[::-1].index("slotwise") + 1 :]
        room = inside[0] if len(inside) > 1 else "(beside the rooms)"
        for key in ("covered_lines", "num_statements", "covered_branches", "num_branches"):
            rooms[room][key] += found["summary"][key]
    return rooms


def show(rooms: dict[str, dict[str, int]], files: dict[str, Any]) -> bool:
    """Print a line a room, the worker's files that lack most, and whether a room is below its least."""
    low = False
    print(f"{'room':20} {'lines':>7} {'branches':>9}")
    for room, counts in sorted(rooms.items()):
        lines, branches = _share(counts, "covered_lines", "num_statements"), _share(counts, "covered_branches", "num_branches")
        print(f"{room:20} {lines:7.1%} {branches:9.1%}")
        if branches < LEAST.get(room, 0):
            low = True
            print(f"error: at least {LEAST[room]:.0%} of the branches of {room}/ were expected", file=sys.stderr)
    of_worker = {path: len(found["missing_branches"]) for path, found in files.items() if "worker" in Path(path).parts}
    for path, missing in sorted(of_worker.items(), key=lambda item: -item[1])[:LISTED]:
        print(f"{missing:4} branches missing in {path}: {_branches(files[path])}")
    counts = rooms["worker"]
    worker = _share(counts, "covered_branches", "num_branches")
    of_all = f"{counts['covered_branches']} of {counts['num_branches']}"
    print(f"branch coverage of worker/ {worker:.1%} ({of_all}); wanted: {LEAST['worker']:.0%}")
    return low


def _branches(found: dict[str, Any]) -> str:
    return ", ".join(f"{start}->{end}" for start, end in found["missing_branches"][:12])


def _share(counts: dict[str, int], reached: str, all_of_them: str) -> float:
    return counts[reached] / counts[all_of_them] if counts[all_of_them] else 1.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
