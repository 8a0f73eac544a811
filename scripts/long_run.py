"""Run what takes too long for every landing, and keep each part's result, with its commit, in .ci/long.json.

    python scripts/long_run.py                 every part
    python scripts/long_run.py tests           this part
    python scripts/long_run.py --due           those that --check finds fault with: on from where a run was broken off
    python scripts/long_run.py --check         say how old the results are; exit 1 where one is red, missing or too old

A part runs on a clean checkout only: its result is that of a commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".ci" / "long.json"
MOST_COMMITS = 200
RESULTS = {0: "green", 77: "not tried"}  # what such an exit code of a part is called; any other is red
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--durations=20")
MODELS = tuple(f"tests/server/test_{name}.py" for name in ("given_models", "triton", "guard"))
WORKER = tuple(f"tests/worker/{name}" for name in ("steps", "test_guard_property.py", "test_own_answers.py"))
HISTORIES = ("tests/backends/simulation", *WORKER)
SERVERS = ("tests/server", "tests/browser", "tests/drop_in", "tests/migrate", "tests/deploy")
APART = (*SERVERS, *HISTORIES, "tests/thirty")
PARTS: dict[str, Sequence[str]] = {  # each takes less than half an hour on two cores that do nothing else
    "models": (*PYTEST, "-m", "long", *MODELS),
    "servers": (*PYTEST, "-m", "long", *SERVERS, *(f"--ignore={file}" for file in MODELS)),
    "thirty": (*PYTEST, "-m", "long", "tests/thirty"),
    # the log plugin keeps each exception's frames, and with them ten thousand handlers
    "histories": (*PYTEST, "-p", "no:logging", "-m", "long", *HISTORIES),
    "tests": (*PYTEST, "-m", "long", "tests", "benchmarks/tests", *(f"--ignore={one}" for one in APART)),
    "coverage": (sys.executable, "scripts/coverage_by_room.py"),
    "stalls": (sys.executable, "scripts/stalls.py", "-m", "not slow and not long", "tests/backends", "tests/frontend"),
    "python-3.12": (sys.executable, "scripts/other_python.py", "3.12"),
    "python-3.13": (sys.executable, "scripts/other_python.py", "3.13"),
}


def main() -> int:
    """Run the parts that are named, or look at what they last gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; none: all of them")
    parser.add_argument("--check", action="store_true", help="run nothing: say how old the kept results are")
    parser.add_argument("--due", action="store_true", help="only parts that never ran, were red, or are too old")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; parts: {', '.join(PARTS)}")
    if given.check:
        return check(KEPT)
    if git("status", "--porcelain", "--", ".", ":!.ci/long.json"):
        print("error: there are changes that are not committed, and a result is that of a commit", file=sys.stderr)
        return 2
    results = [run(part) for part in given.parts or PARTS if not given.due or due(part, KEPT)]
    return 0 if all(results) else 1


def run(part: str) -> bool:
    """Run one part, and keep what came of it."""
    print(f"--- {part}: {' '.join(PARTS[part])}", flush=True)
    started, commit = time.monotonic(), git("rev-parse", "HEAD")
    with subprocess.Popen(PARTS[part], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert job.stdout is not None
        last = ""
        for line in job.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    kept = _kept(KEPT)
    kept[part] = {
        "commit": commit,
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "result": RESULTS.get(job.returncode, "red"),
        "last_line": last.strip("= "),
        "minutes": round((time.monotonic() - started) / 60, 1),
    }
    KEPT.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", "utf-8")
    return job.returncode in RESULTS


def due(part: str, file: Path) -> bool:
    """Whether something is wrong with a part's result."""
    kept = _kept(file)
    return bool(verdict(kept.get(part), commits_since(kept, part, file))[0])


def check(file: Path) -> int:
    """Print a line a part; 1 where one never ran, was red, or is more than MOST_COMMITS commits old."""
    kept, wrong = _kept(file), 0
    for part in PARTS:
        fault, age = verdict(kept.get(part), commits_since(kept, part, file))
        print(f"long run, {part}: {fault or 'sound'}{age}")
        wrong += bool(fault)
    if wrong:
        print("hint: make long PARTS=--due, then check .ci/long.json in", file=sys.stderr)
    return 1 if wrong else 0


def verdict(result: Mapping[str, Any] | None, commits: int | None) -> tuple[str, str]:
    """What is wrong with a part's result ("" where nothing is), and how old it is, in words.

    commits: how many came after it; None where that cannot be known here, which is said and is no fault.
    """
    if result is None:
        return "never ran", ""
    if commits is None:
        age = f", {result['day']}; how many commits ago is not known here ({str(result['commit'])[:9]} is not in this history)"
    else:
        age = f", {commits} commits ago"
    if result["result"] == "red":
        return f"red ({result['last_line']})", age
    if result["result"] != "green":
        age += f", {result['result']} ({result['last_line']})"
    return ("too old" if commits is not None and commits > MOST_COMMITS else ""), age


def commits_since(kept: Mapping[str, Any], part: str, file: Path) -> int | None:
    """How many commits came after the one that this part ran on.

    Where that one is not in the history (it was rebased), those after the one that checked the results in. None in a shallow
    clone, where too few would be counted.
    """
    if part not in kept or git("rev-parse", "--is-shallow-repository") != "false":
        return None
    commit = str(kept[part]["commit"])
    if not _in_history(commit):
        commit = git("log", "-1", "--format=%H", "--", str(file))
    counted = git("rev-list", "--count", f"{commit}..HEAD") if commit else ""
    return int(counted) if counted else None


def _in_history(commit: str) -> bool:
    done = subprocess.run(("git", "merge-base", "--is-ancestor", commit, "HEAD"), cwd=ROOT, capture_output=True)
    return done.returncode == 0


def git(*arguments: str) -> str:
    """What git prints; "" where it fails."""
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _kept(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


if __name__ == "__main__":
    sys.exit(main())
