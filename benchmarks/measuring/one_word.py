"""A deployment of TorchServe, and the same one with a word changed: one folder's files, asked in turn."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.rounds import WARM_UP_S, Cell, Reading, in_turn, rows_beside
from benchmarks.measuring.servers import built
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, TORCHSERVE, deployed

CLIENTS = (1, 8, 32, 64)
SYSTEMS = {"torchserve": TORCHSERVE, "slotwise torchserve": OURS}
SETTINGS = {"batchSize": 16, "maxBatchDelay": 1, "minWorkers": 2, "maxWorkers": 2}
MODELS = {"mnist": "mnist", "echo": "another tool's echo"}


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks both once in each cell; the other is stopped. Logs and metrics are as TorchServe has them by default."""
    info = built("mnist", work)
    store = work / "deployments"
    store.mkdir()
    shutil.copy(info.path, store / "mnist.mar")
    archive(store, "echo", "echo")
    models = {name: {"1.0": {"defaultVersion": True, "marName": f"{name}.mar", **SETTINGS}} for name in MODELS}
    lines = (f"models={json.dumps(models)}", "default_workers_per_model=2")
    sent = {
        "mnist": [body for body in examples(str(info.path)) if body.name.endswith(".f32")],
        "echo": [RequestBody(b"x" * 1000)],
    }
    readings = {}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                deployed(program, work / name.replace(" ", "-"), store, lines, ("--ncs", "--models", "mnist.mar,echo.mar"))
            )
            for name, program in SYSTEMS.items()
        }
        for deployment in running.values():
            for model in MODELS:
                deployment.wait_ready(model, 2)
        targets = {
            (name, model): Target(f"{deployment.inference}/predictions/{model}", deployment.headers("inference"))
            for name, deployment in running.items()
            for model in MODELS
        }
        for (name, model), target in targets.items():
            say(f"warm-up: {model}, {name}")
            load.measure(target, sent[model], LoadPlan(64, WARM_UP_S, warm_up_s=0))
        turns = stack.enter_context(OneAtATime({name: deployment.pid for name, deployment in running.items()}))

        def ask(cell: Cell, system: str) -> Reading:
            model = next(name for name, what in MODELS.items() if what == cell[0])
            target = targets[system, model]
            with turns.running(system):
                load.measure(target, sent[model], LoadPlan(cell[1], 0.5, warm_up_s=0))
                plan = LoadPlan(cell[1], options.seconds, warm_up_s=0)
                return Reading.of(load_tools.measure(options.tool, target, sent[model], plan))

        cells = [(what, clients) for what in MODELS.values() for clients in CLIENTS]
        readings = in_turn(cells, list(SYSTEMS), ask, options.rounds, say=say, warm_ups=1)
    return {"rows": rows_beside(readings, "torchserve")}
