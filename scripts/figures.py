#!/usr/bin/env python
"""The measurements of docs/performance.md that no `slotwise` command makes by itself, each in one run, in turns.

python scripts/figures.py echo      a tuned MNIST against handlers that only answer, and against the shortest one
python scripts/figures.py text      translation and captions: one request a batch against the profile's batches
python scripts/figures.py gateway   what it adds to a ResNet-18 request, and one minute at twice the capacity
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from comparison.results import machine

from slotwise.archive.build import ArchiveInfo, build, inspect
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import Body, examples, with_records
from slotwise.bench.load import Measured, Plan
from slotwise.bench.wire import Target
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.console import err, out, say
from slotwise.deploy.deploy import deploy, registration
from slotwise.errors import SlotwiseError
from slotwise.gateway import process as gateway_process
from slotwise.interrupts import interruptible
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import ServerRecord, start, stop
from slotwise.tune.finals import Finalist, play
from slotwise.tune.live import LiveBench
from slotwise.tune.run import baselines
from slotwise.tune.search import Goal
from slotwise.tune.space import Setting
from slotwise.worker.cores import available_cores
from slotwise.zoo import pictures

ECHO = '''"""No Slotwise: every request gets an answer as long as the MNIST model's, at once."""

ANSWER = b"x" * 150


def handle(data, context):
    return [ANSWER for _ in data or []]
'''

SLOTWISE_ECHO = '''"""The same answer from a handler of Slotwise: slots, headers and metrics, but no input and no model."""

from slotwise.worker import BatchHandler

ANSWER = b"x" * 150


class Echo(BatchHandler):
    def load(self, model_dir, settings):
        return None

    def decode(self, body, headers):
        return [0]

    def collate(self, items):
        return items

    def predict(self, inputs):
        return inputs

    def respond(self, request, results):
        return ANSWER, "application/json"


handle = Echo.entry_point()
'''


BARE_MNIST = '''"""No Slotwise: the same graph in the shortest handler; it checks nothing, one bad body fails its batch."""

import os

import numpy as np
import onnxruntime

SESSION = None


def handle(data, context):
    global SESSION
    if data is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        SESSION = onnxruntime.InferenceSession(os.path.join(context.system_properties["model_dir"], "mnist.onnx"), options)
        return []
    rows = np.stack([np.frombuffer(row["body"], "<f4").reshape(1, 28, 28) for row in data])
    scores = SESSION.run(None, {SESSION.get_inputs()[0].name: (rows - 0.13) / 0.31})[0]
    return [{"label": int(row.argmax()), "scores": row.tolist()} for row in scores.round(6)]
'''

TUNED = {64: [Setting(16, 1, 2, 1)], 8: [Setting(4, 1, 1, 2), Setting(1, 1, 2, 1)]}  # clients: what tune found, and batch 1
OTHERS = {"echo": ECHO, "slotwise_echo": SLOTWISE_ECHO, "bare_mnist": BARE_MNIST}


@contextmanager
def server(work: Path) -> Iterator[ServerRecord]:
    """A TorchServe of its own, with the settings of the profile `cpu`; its state is below `work`."""
    os.environ["SLOTWISE_HOME"] = str(work)
    record = start(
        "default", "torchserve", load_profile("cpu", environ={}), model_store=work / "store", ports=Ports.free(), models={}
    )
    try:
        yield record
    finally:
        gateway_process.stop()
        stop(record)


def built(model: str, work: Path, weights: str | None = None) -> ArchiveInfo:
    """The model's archive in the server's store."""
    say(f"building {model}")
    (work / "store").mkdir(exist_ok=True)
    return inspect(build(model, work / "store", weights))


def told(rounds: Sequence[Measured]) -> dict[str, Any]:
    """Medians over the rounds, and every round's answers a second."""
    keys = ("req_s", "p50_ms", "p99_ms", "mean_batch")
    middle = {key: round(statistics.median(getattr(m, key) for m in rounds), 1) for key in keys}
    return {**middle, "rounds": [round(m.req_s, 1) for m in rounds], "lost": sum(m.lost for m in rounds)}


def ratio(ours: Sequence[Measured], other: Sequence[Measured], key: str = "req_s") -> float:
    """The median over the rounds of what both reached in the same round."""
    pairs = zip(ours, other, strict=True)
    return round(statistics.median(getattr(a, key) / max(getattr(b, key), 1e-9) for a, b in pairs), 2)


def echo(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """MNIST, two handlers that only answer and one that only computes, in turns, at 64 and at 8 clients."""
    infos = {"mnist": built("mnist", work)}
    for name, code in OTHERS.items():
        folder = work / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(code, "utf-8")
        with zipfile.ZipFile(infos["mnist"].path) as mnist:
            mnist.extract("mnist.onnx", folder)
        (folder / "model.toml").write_text(f'name = "{name}"\nhandler = "{name}.py"\nfiles = ["mnist.onnx"]\n', "utf-8")
        infos[name] = built(str(folder), work)
    bodies = [body for body in examples(str(infos["mnist"].path)) if body.name.endswith(".f32")]
    found: dict[str, Any] = {"loads": []}
    with server(work) as record, ExitStack() as stack:
        benches = {name: stack.enter_context(LiveBench(record, info, bodies, tool=asked.tool)) for name, info in infos.items()}
        for clients, settings in TUNED.items():
            rounds: dict[tuple[Setting, str], list[Measured]] = {(s, name): [] for s in settings for name in benches}
            for bench in benches.values():
                bench.hold(settings)
            for turn in range(asked.rounds + 1):  # the first one warms the JVM up: it goes on compiling for half a minute
                for (setting, name), measured in rounds.items():
                    measured.append(benches[name].measure(setting, clients, asked.seconds))
                    say(f"round {turn}: {clients} clients, {setting}, {name}: {measured[-1].req_s:.0f} a second")
            for setting in settings:
                loads = {name: rounds[setting, name][1:] for name in benches}
                ratios = {f"mnist_vs_{name}": ratio(loads["mnist"], loads[name]) for name in OTHERS}
                systems = {name: told(load) for name, load in loads.items()}
                found["loads"].append({"clients": clients, "setting": str(setting), "systems": systems, **ratios})
    return found


def text(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """64 clients: one request a batch against the profile's batches, in turns."""
    found: dict[str, Any] = {}
    infos = {model: built(model, work) for model in ("translation", "captions")}
    with server(work) as record:
        for model, info in infos.items():
            bodies = examples(str(info.path))
            if model == "translation":
                bodies = [with_records(body, 1) for body in bodies]
            _, profile = baselines(record, info, available_cores())
            single = replace(profile, batch_size=1)
            with LiveBench(record, info, bodies) as bench:
                say(f"{model}: {asked.rounds} rounds of {asked.seconds:g} s each way")
                decision = play(bench, [single, profile], Goal(1e9, 64), seconds=asked.seconds, rounds=asked.rounds)
            by_setting: dict[Setting, Finalist] = {f.setting: f for f in decision.finalists}
            rounds = by_setting[profile].rounds, by_setting[single].rounds
            found[model] = {str(f.setting): told(f.rounds) for f in decision.finalists} | {"batched_vs_single": ratio(*rounds)}
    return found


def gateway(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """ResNet-18: 8 clients straight to the server and through the gateway, in turns; then twice what it can do."""
    info = built("resnet18", work, "none")
    bodies = [Body(pictures.sample_jpeg(720, 720), "image/jpeg")]
    with server(work) as record:
        with ManagementClient(record) as client:
            deploy(client, info, registration(info, load_profile("cpu", environ={}), {}))
        front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
        while not front.status()["ready"]:
            time.sleep(0.2)
        direct = Target(f"{record.inference_url}/predictions/{info.name}", auth_headers(record))
        through = Target(f"{front.url}/predictions/{info.name}", {})
        rounds: dict[str, list[Measured]] = {"direct": [], "gateway": []}
        for turn in range(asked.rounds):
            for name, target in (("direct", direct), ("gateway", through)):
                rounds[name].append(load_tools.measure(asked.tool, target, bodies, Plan(8, asked.seconds)))
                say(f"round {turn + 1}: {name}: {rounds[name][-1].req_s:.1f} a second")
        found: dict[str, Any] = {name: told(loads) for name, loads in rounds.items()}
        found["gateway_vs_direct"] = {key: ratio(rounds["gateway"], rounds["direct"], key) for key in ("req_s", "p50_ms")}
        found["overload"] = overload(through, front, bodies, asked.minute)
    return found


def overload(target: Target, front: gateway_process.GatewayRecord, bodies: list[Body], seconds: float) -> dict[str, Any]:
    """As many clients as the gateway lets in, then arrivals at twice the rate that this gave."""
    limits = front.status()["models"][0]
    clients = limits["in_flight_max"] + limits["queue_max"]
    full = load.measure(target, bodies, Plan(clients, 15, warm_up_s=3))
    say(f"capacity: {full.req_s:.1f} a second with {clients} clients, p99 {full.p99_ms:.0f} ms; now twice that")
    memory: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            memory.append(psutil.Process(front.pid).memory_info().rss / 2**20)

    watcher = threading.Thread(target=watch)
    watcher.start()
    over = load.measure(target, bodies, Plan(1000, seconds, warm_up_s=3, rate=2 * full.req_s, timeout_s=30))
    ended.set()
    watcher.join()
    return {
        "capacity": {"clients": clients, "req_s": round(full.req_s, 1), "p99_ms": round(full.p99_ms, 1), "errors": full.errors},
        "offered_req_s": round(2 * full.req_s, 1),
        "seconds": seconds,
        "requests": over.requests,
        "accepted_req_s": round(over.req_s, 1),
        "p99_ms": round(over.p99_ms, 1),
        "p99_ratio": round(over.p99_ms / full.p99_ms, 2),
        "errors": over.errors,
        "client_limited": over.client_limited,
        "gateway_memory_mib": {"first": round(memory[2], 1), "last": round(memory[-1], 1), "most": round(max(memory), 1)},
    }


def main() -> int:
    """Measure one part; 1 where a server cannot be started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("echo", "text", "gateway"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one measurement")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds at twice the capacity")
    parser.add_argument("--tool", choices=("wrk", "ab"), default="wrk")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slotwise-figures-") as name:
        try:
            found = {"machine": machine(), **globals()[asked.part](asked, Path(name))}
        except SlotwiseError as error:
            err().print(f"error: {error}", highlight=False)
            return 1
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    out().print_json(json.dumps(found))
    return 0


if __name__ == "__main__":
    try:
        with interruptible():
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
