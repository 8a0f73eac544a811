"""Our own host beside TorchServe, each alone and behind its gateway: the same archives and settings, asked in turn."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.on_hosts import bodies
from benchmarks.measuring.rounds import WARM_UP_S, Cell, Reading, Readings, in_turn, rows_beside
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load, load_tools
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.inference import auth_headers
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.server.record import ServerRecord
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

CLIENTS = {"mnist": (1, 8, 32, 64), "resnet18": (1, 8)}  # with more, batches of 4 fill the gateways' places: 429
WARM_UP_CLIENTS = 64
SETTINGS = {"mnist": TrialSetting(16, 1, 2, 1, "onnxruntime", "fp32"), "resnet18": TrialSetting(4, 5, 2, 1, "openvino", "fp32")}
NAMES = {"torchserve": "torchserve", "slotwise": "own host"}


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks the two servers and the two gateways once in each cell; the others are stopped."""
    infos = {"mnist": built("mnist", work), "resnet18": built("resnet18", work, "none")}
    readings: Readings = {}
    with ExitStack() as stack:
        records = {kind: stack.enter_context(server(work, kind, kind)) for kind in ("torchserve", "slotwise")}
        fronts = {kind: _gateway(stack, kind) for kind in records}
        for model, info in infos.items():
            readings |= _one_model(options, records, fronts, info, SETTINGS[model])
    return {"rows": rows_beside(readings, "torchserve")}


def _gateway(stack: ExitStack, name: str) -> gateway_process.GatewayRecord:
    front = gateway_process.start_detached(name, ["--name", name, "--port", "0", "--translation-port", "-1"])
    stack.callback(gateway_process.stop, name)
    return front


def _one_model(
    options: Namespace,
    records: dict[Any, ServerRecord],
    fronts: dict[Any, gateway_process.GatewayRecord],
    info: ArchiveInfo,
    setting: TrialSetting,
) -> Readings:
    sent = bodies(info)
    with ExitStack() as stack:
        targets: dict[str, tuple[str, Target]] = {}
        for kind, record in records.items():
            bench = stack.enter_context(LiveBench(record, info, sent))
            bench.keep_ready([setting])
            name = bench.serve(setting)
            targets[NAMES[kind]] = kind, Target(record.prediction_url(name), auth_headers(record))
            targets[f"{NAMES[kind]}, gateway"] = kind, Target(f"{fronts[kind].url}/predictions/{name}", {})
            while name not in {model["name"] for model in fronts[kind].status()["models"] if model["ready_workers"]}:
                time.sleep(0.2)
            say(f"warm-up: {info.name}, {kind}")
            load.measure(targets[NAMES[kind]][1], sent, LoadPlan(WARM_UP_CLIENTS, WARM_UP_S, warm_up_s=0))
        roots = {kind: record.pid for kind, record in records.items()}
        roots["torchserve's gateway"] = fronts["torchserve"].pid  # the own host's has its work done in the host's process
        turns = stack.enter_context(OneAtATime(roots))

        def ask(cell: Cell, system: str) -> Reading:
            kind, target = targets[system]
            with ExitStack() as running:
                running.enter_context(turns.running(kind))
                if system == "torchserve, gateway":
                    running.enter_context(turns.running("torchserve's gateway"))
                load.measure(target, sent, LoadPlan(cell[1], 0.5, warm_up_s=0))  # it waits for its answers
                return Reading.of(
                    load_tools.measure(options.tool, target, sent, LoadPlan(cell[1], options.seconds, warm_up_s=0))
                )

        cells = [(f"{info.name}, {setting}", clients) for clients in CLIENTS[info.name]]
        return in_turn(cells, list(targets), ask, options.rounds, say=say, warm_ups=1)
