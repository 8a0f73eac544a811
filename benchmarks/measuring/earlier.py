"""The worker as it is against the worker of an earlier commit: each archive carries its own, one server runs both."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from measuring.about import ROOT, git
from measuring.lean import spent_s
from measuring.rounds import Cell, Reading, Readings, in_turn, rows
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan
from slotwise.console import say
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting
from slotwise.zoo import pictures

LOADS = [  # model, setting, clients; the engine is named, so that both workers take the same
    ("mnist", TrialSetting(16, 1, 2, 1, "onnxruntime", "fp32"), 64),
    ("mnist", TrialSetting(4, 1, 1, 2, "onnxruntime", "fp32"), 8),
    ("resnet18", TrialSetting(8, 10, 1, 2, "openvino", "fp32"), 8),
]
WEIGHTS = {"resnet18": "none"}


def built_earlier(model: str, commit: str, work: Path) -> ArchiveInfo:
    """The model's archive as that commit builds it, under the name MODEL-before."""
    tree, folder, archive = work / "tree", work / f"{model}-before", work / "store" / f"{model}-before.mar"
    if archive.exists():
        return inspect(archive)
    if not tree.exists():
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), commit], check=True, capture_output=True
        )
    subprocess.run(["cp", "-r", str(tree / "models" / model), str(folder)], check=True)
    text = (folder / "model.toml").read_text("utf-8")
    (folder / "model.toml").write_text(text.replace(f'name = "{model}"', f'name = "{model}-before"', 1), "utf-8")
    say(f"building {model} as of {commit}")
    command = [sys.executable, "-m", "slotwise.cli", "build", str(folder), "--out", str(work / "store")]
    command += ["--weights", WEIGHTS[model]] if model in WEIGHTS else []
    environ = {**os.environ, "PYTHONPATH": str(tree), "SLOTWISE_HOME": str(work / "before")}
    subprocess.run(command, cwd=tree, env=environ, check=True)
    return inspect(archive)


def compare(options: Namespace, work: Path, record: Any) -> dict[str, Any]:
    """Rounds in turn of both workers under each load: answers a second, and what an answer costs the worker's processes."""
    try:
        readings: Readings = {}
        spent: dict[tuple[Cell, str], list[float]] = {}
        for model, setting, clients in LOADS:
            say(f"building {model}")
            infos = {
                "before": built_earlier(model, options.commit, work),
                "now": inspect(build(model, work / "store", WEIGHTS.get(model))),
            }
            bodies = [body for body in examples(str(infos["now"].path)) if body.name.endswith(".f32")]
            bodies = bodies or [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]
            with ExitStack() as stack:
                benches = {
                    who: stack.enter_context(LiveBench(record, info, bodies, tool=options.tool)) for who, info in infos.items()
                }
                for bench in benches.values():
                    bench.keep_ready([setting])

                def measure(
                    cell: Cell, who: str, benches: dict[str, LiveBench] = benches, setting: TrialSetting = setting
                ) -> Reading:
                    reading, us = _measured(benches[who], setting, cell[1], options)
                    spent.setdefault((cell, who), []).append(us)
                    return reading

                cell = (f"{model}, {setting}", clients)
                readings |= in_turn([cell], list(infos), measure, options.rounds, say=say, warm_ups=2)
        table = rows(readings, detail=True)
        for row in table:
            row["cpu_us"] = spent[(row["workload"], row["concurrency"]), row["system"]][-options.rounds :]
        return {"before": git("rev-parse", "--short", options.commit), "rows": table}
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(work / "tree")], capture_output=True)


def _measured(bench: LiveBench, setting: TrialSetting, clients: int, options: Namespace) -> tuple[Reading, float]:
    """One round of one worker, and the processor microseconds that an answer costs its processes.

    Others on the machine slow a worker down, but it spends about the same processor time on an answer.
    """
    target = Target.of(bench.record, bench.serve(setting))
    workers = [psutil.Process(worker.pid) for worker in bench.management.describe(bench.serving[setting]).workers]
    load.measure(target, bench.bodies, LoadPlan(clients, 0.3, warm_up_s=0.0))  # it waits for its answers
    before_s = sum(map(spent_s, workers))
    measured = load_tools.measure(options.tool, target, bench.bodies, LoadPlan(clients, options.seconds, warm_up_s=0.0))
    spent = sum(map(spent_s, workers)) - before_s
    return Reading.of(measured), round(1e6 * spent / max(measured.requests, 1), 1)
