"""Processor time that a request costs a worker, without a server: as it is against the worker of an earlier commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import instructions
from benchmarks.measuring.about import ROOT, git
from benchmarks.measuring.rounds import median_interval
from slotwise.archive.build import build
from slotwise.archive.local_model import LocalModel, load
from slotwise.bench.bodies import RequestBody, examples
from slotwise.console import say
from slotwise.zoo import pictures

MODELS = ("digits", "resnet18", "mnist")
WEIGHTS = {"resnet18": "none"}
BATCHES = (1, 8, 32)
PASSES = 4  # each worker's measured times in a round; the median counts


def compare(options: Namespace, work: Path) -> dict[str, Any]:
    """Rounds in turn of both workers, for each model and size of batch; the ratio of their processor times, round by round."""
    try:
        table = [row for model in MODELS for row in _rows(model, options, work)]
        trees = {"before": work / "tree", "now": ROOT}
        counted = instructions.compare(trees, BATCHES) if shutil.which("valgrind") else []
        return {"before": git("rev-parse", "--short", options.commit), "rows": table, "instructions": counted}
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(work / "tree")], capture_output=True)


def _rows(model: str, options: Namespace, work: Path) -> list[dict[str, Any]]:
    now = build(model, work / "store", WEIGHTS.get(model))
    archives = {"before": _built_earlier(model, options.commit, work), "now": now}
    bodies = [body for body in examples(str(now)) if not body.bad]
    bodies = [body for body in bodies if body.name.endswith(".f32")] or bodies
    bodies = bodies or [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]
    rows = []
    for n in BATCHES:
        rounds = [_round(archives, bodies, n, turn, options.seconds) for turn in range(options.rounds)]
        ratios = [one["now"] / one["before"] for one in rounds]
        interval = median_interval(ratios)
        say(f"{model}, batches of {n}: {sorted(ratios)[len(ratios) // 2]:.3f} of before, 95% interval {interval}")
        rows.append({"model": model, "n": n, "rounds": rounds, "ratios": ratios, "interval": interval and interval._asdict()})
    return rows


def _built_earlier(model: str, commit: str, work: Path) -> Path:
    """The model's archive as that commit builds it, under the name MODEL-before."""
    tree, folder = work / "tree", work / f"{model}-before"
    if not tree.exists():
        add = ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), commit]
        subprocess.run(add, check=True, capture_output=True)
    shutil.copytree(tree / "models" / model, folder)
    text = (folder / "model.toml").read_text("utf-8")
    (folder / "model.toml").write_text(text.replace(f'name = "{model}"', f'name = "{folder.name}"', 1), "utf-8")
    say(f"building {model} as of {commit}")
    command = [sys.executable, "-m", "slotwise.cli", "build", str(folder), "--out", str(work / "store")]
    command += ["--weights", WEIGHTS[model]] if model in WEIGHTS else []
    environ = {**os.environ, "PYTHONPATH": str(tree), "SLOTWISE_HOME": str(work / "before")}
    subprocess.run(command, cwd=tree, env=environ, check=True)
    return work / "store" / f"{folder.name}.mar"


def _round(archives: dict[str, Path], bodies: list[RequestBody], n: int, turn: int, seconds: float) -> dict[str, float]:
    """Both workers started anew, for where a process lies in memory is a difference of its own, and asked in turns."""
    with ExitStack() as stack:
        workers = {who: stack.enter_context(load(path, batch_size=n)) for who, path in archives.items()}
        spent: dict[str, list[float]] = {who: [] for who in workers}
        for worker in workers.values():
            _us_a_request(worker, bodies, n, seconds)
        for step in range(PASSES):
            for who in list(workers) if (turn + step) % 2 else list(workers)[::-1]:
                spent[who].append(_us_a_request(workers[who], bodies, n, seconds))
    return {who: median(times) for who, times in spent.items()}


def _us_a_request(worker: LocalModel, bodies: list[RequestBody], n: int, seconds: float) -> float:
    """Processor microseconds of the worker's whole process for each request, in batches of n for so many seconds."""
    bodies = [bodies[i % len(bodies)] for i in range(n)]
    requests = [(body.data, {"content-type": body.content_type}) for body in bodies]
    before = _spent_ns(worker.child.pid)
    _, batches = worker.timed(requests, n, seconds)
    return (_spent_ns(worker.child.pid) - before) / 1000 / (n * len(batches))


def _spent_ns(pid: int) -> int:
    """Nanoseconds that all threads of a process have spent on processors."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
