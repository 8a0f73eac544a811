"""The parts of docs/performance.md that no `slotwise` command measures by itself. Each returns rows, and what else it found."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from measuring import earlier as earlier_worker
from measuring import front_settings, guarding, on_hosts, ray_nodes, scaling, worker_cost
from measuring import hostile as hostile_pictures
from measuring import lean as lean_front
from measuring import stress as stress_cases
from measuring.hanging import MODEL, standin
from measuring.overload import overload
from measuring.rounds import WARM_UP_S, Cell, Reading, Readings, in_turn, ratio, rows
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan
from slotwise.bench.offline import LinearTime
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.frontend import process as gateway_process
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, start, stop
from slotwise.tune import study
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import BATCH_SIZES, TrialSetting
from slotwise.tune.tuning import baselines
from slotwise.worker.engines.processor import has_bf16
from slotwise.worker.environment.cores import available_cores
from slotwise.zoo import pictures

HANDLERS = Path(__file__).parent / "handlers"
TUNED = {
    64: [TrialSetting(16, 1, 2, 1)],
    8: [TrialSetting(4, 1, 1, 2), TrialSetting(1, 1, 2, 1)],
}  # clients: what tune found, and batch 1


@contextmanager
def server(work: Path, kind: Kind = "torchserve", name: str = "default", **changes: str) -> Iterator[ServerRecord]:
    """A server of its own, with the settings of the profile `cpu` and these changes; its state is below `work`."""
    os.environ["SLOTWISE_HOME"] = str(work)
    profile = load_profile("cpu", changes, environ={})
    record = start(name, kind, profile, model_store=work / "store", ports=Ports.free(), models={})
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


def handlers(work: Path) -> dict[str, ArchiveInfo]:
    """MNIST, two handlers that only answer and one that only computes, each with MNIST's graph."""
    infos = {"mnist": built("mnist", work)}
    for handler in sorted(HANDLERS.glob("*.py")):
        name, folder = handler.stem, work / handler.stem
        folder.mkdir()
        (folder / handler.name).write_bytes(handler.read_bytes())
        with zipfile.ZipFile(infos["mnist"].path) as mnist:
            mnist.extract("mnist.onnx", folder)
        (folder / "model.toml").write_text(f'name = "{name}"\nhandler = "{name}.py"\nfiles = ["mnist.onnx"]\n', "utf-8")
        infos[name] = built(str(folder), work)
    return infos


def echo(options: Namespace, work: Path) -> dict[str, Any]:
    """A tuned MNIST against handlers that only answer, and against the shortest one."""
    infos = handlers(work)
    bodies = [body for body in examples(str(infos["mnist"].path)) if body.name.endswith(".f32")]
    readings: Readings = {}
    with server(work) as record, ExitStack() as stack:
        benches = {
            name: stack.enter_context(LiveBench(record, info, bodies, tool=options.tool)) for name, info in infos.items()
        }
        for clients, settings in TUNED.items():
            by_name = {str(setting): setting for setting in settings}
            for bench in benches.values():
                bench.keep_ready(settings)

            def measure(cell: Cell, system: str, by_name: dict[str, TrialSetting] = by_name) -> Reading:
                return Reading.of(benches[system].measure(by_name[cell[0]], cell[1], options.seconds))

            cells = [(name, clients) for name in by_name]  # the JVM goes on compiling for half a minute: a round to warm up
            readings |= in_turn(cells, list(infos), measure, options.rounds, say=say, warm_ups=1)
    return {"rows": rows(readings, detail=True)}


def hosts(options: Namespace, work: Path) -> dict[str, Any]:
    """The same archives on TorchServe, MMS, Ray and Triton, all of them up, one asked after the other."""
    infos = {"mnist": built("mnist", work), "resnet18": built("resnet18", work, "none")}
    with ExitStack() as servers:
        records = {kind: servers.enter_context(server(work, kind, kind)) for kind in on_hosts.HOSTS}
        return on_hosts.measure(records, infos, options.rounds, options.seconds)


def front(options: Namespace, work: Path) -> dict[str, Any]:
    """MNIST on servers that differ in one setting of TorchServe's front each, and in batch sizes by load."""
    return front_settings.measure(options, built("mnist", work), partial(server, work), options.tool)


def settings_in_turn(options: Namespace, bench: LiveBench, settings: Sequence[TrialSetting], *, warm_ups: int = 0) -> Readings:
    """One model under 64 clients with each setting in turn, all of them registered together."""
    by_name = {str(setting): setting for setting in settings}
    bench.keep_ready(settings)

    def measure(cell: Cell, system: str) -> Reading:
        return Reading.of(bench.measure(by_name[system], cell[1], options.seconds))

    return in_turn([(bench.info.name, 64)], list(by_name), measure, options.rounds, say=say, warm_ups=warm_ups)


def text(options: Namespace, work: Path) -> dict[str, Any]:
    """Translation and captions, 64 clients: one request a batch against the profile's batches."""
    infos = {model: built(model, work) for model in ("translation", "captions")}
    readings: Readings = {}
    with server(work) as record:
        for model, info in infos.items():
            bodies = examples(str(info.path))
            if model == "translation":
                bodies = [with_records(body, 1) for body in bodies]
            _, profile = baselines(record, info, available_cores())
            with LiveBench(record, info, bodies) as bench:
                readings |= settings_in_turn(options, bench, [replace(profile, batch_size=1), profile])
    return {"rows": rows(readings, detail=True)}


def captions(options: Namespace, work: Path) -> dict[str, Any]:
    """Captions, 64 clients: every batch size from 1 to 64, within 1 ms, one worker of two threads."""
    info = built("captions", work)
    settings = [TrialSetting(size, 1, workers=1, threads=2) for size in BATCH_SIZES]
    with server(work) as record, LiveBench(record, info, examples(str(info.path))) as bench:
        return {"rows": rows(settings_in_turn(options, bench, settings, warm_ups=1), detail=True)}


def stress(options: Namespace, work: Path) -> dict[str, Any]:
    """Translation as slow as a real M2M100, in an open loop through the gateway with its default limits."""
    info = built(str(stress_cases.folder(built("translation", work), work)), work)
    with server(work) as record:
        return stress_cases.measure(deployed(record, info), info)


def deployed(record: ServerRecord, info: ArchiveInfo) -> gateway_process.GatewayRecord:
    """The model, registered as the profile says, and a gateway in front of it that is ready; `server` stops both."""
    with ManagementClient(record) as client:
        deploy(client, info, registration(info, load_profile("cpu", environ={}), {}))
    front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
    while not front.status()["ready"]:
        time.sleep(0.2)
    return front


@contextmanager
def haproxy(port: int, work: Path) -> Iterator[tuple[int, psutil.Process]]:
    """HAProxy before the server, which only hands requests on: what any front costs. Yields its port and its process."""
    own = Ports.free().inference
    config = work / "haproxy.cfg"
    config.write_text(
        "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
        f"frontend f\n bind 127.0.0.1:{own}\n default_backend b\nbackend b\n server s 127.0.0.1:{port}\n"
    )
    process = subprocess.Popen(["haproxy", "-f", str(config)])
    try:
        yield own, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def gateway(options: Namespace, work: Path) -> dict[str, Any]:
    """ResNet-18, 8 and 16 clients straight to the server, through the gateway and HAProxy; then twice what it can do."""
    info = built("resnet18", work, "none")
    bodies = [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]
    names = ("fp32", "bf16") if has_bf16() else ("fp32",)
    precisions = {name: TrialSetting(4, 10, 2, 1, "openvino", name) for name in names}
    spent: dict[tuple[Cell, str], list[float]] = {}
    with server(work) as record, haproxy(record.ports.inference, work) as (proxy, proxy_process):
        front = deployed(record, info)
        fronts = {
            "direct": (record.inference_url, None),
            "gateway": (front.url, psutil.Process(front.pid)),
            "haproxy": (f"http://127.0.0.1:{proxy}", proxy_process),
        }
        with LiveBench(record, info, bodies) as bench:
            bench.keep_ready(list(precisions.values()))

            def measure(cell: Cell, system: str) -> Reading:
                url, process = fronts[system]
                name = bench.serve(precisions[cell[0]])
                target = Target(f"{url}/predictions/{name}", {} if system == "gateway" else auth_headers(record))
                load.measure(target, bodies, LoadPlan(cell[1], 0.3, warm_up_s=0))  # it waits for its answers
                before = lean_front.cpu_s(process, record)
                measured = load_tools.measure(options.tool, target, bodies, LoadPlan(cell[1], options.seconds, warm_up_s=0))
                after = lean_front.cpu_s(process, record)
                cpu_ms = 1e3 * (sum(after.values()) - sum(before.values())) / max(measured.requests, 1)
                spent.setdefault((cell, system), []).append(round(cpu_ms, 2))
                return Reading.of(measured)

            cells = [(precision, clients) for precision in precisions for clients in (8, 16)]
            for setting in precisions.values():
                load.measure(Target.of(record, bench.serve(setting)), bodies, LoadPlan(8, WARM_UP_S, warm_up_s=0))
            readings = in_turn(cells, list(fronts), measure, options.rounds, say=say, warm_ups=1)
        table = rows(readings, detail=True)
        for row in table:
            row["cpu_ms"] = spent[(row["workload"], row["concurrency"]), row["system"]][-options.rounds :]
        target = Target(f"{front.url}/predictions/{info.name}", {})
        return {"rows": table, "overload": overload(target, front, bodies, options.minute)}


def hedging(options: Namespace, work: Path) -> dict[str, Any]:
    """A stand-in server behind the gateway: all requests answered, and one in 50 never."""
    os.environ["SLOTWISE_HOME"] = str(work)
    every = {"all answer": 0, "one in 50 hangs": 50}
    sent: dict[str, list[float]] = {system: [] for system in every}
    with standin(work) as server:
        front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
        target = Target(f"{front.url}/predictions/{MODEL}", {})

        def measure(cell: Cell, system: str) -> Reading:
            server.every, before = every[system], server.seen
            measured = load.measure(
                target, [RequestBody(b"x")], LoadPlan(cell[1], None, requests=int(200 * options.seconds), warm_up_s=0)
            )
            sent[system].append(round((server.seen - before) / measured.requests, 4))
            return Reading.of(measured)

        try:
            while not front.status()["ready"]:
                time.sleep(0.1)
            readings = in_turn([("20 to 100 ms", 16)], list(every), measure, options.rounds, say=say, warm_ups=1)
        finally:
            gateway_process.stop()
    (by_system,) = readings.values()
    slowest = {system: [r.p99_ms or 0.0 for r in rounds] for system, rounds in by_system.items()}
    slower = ratio(slowest["one in 50 hangs"], slowest["all answer"])
    return {"rows": rows(readings, detail=True), "p99_ratio": slower and slower._asdict(), "copies_per_request": sent}


def hostile(options: Namespace, work: Path) -> dict[str, Any]:
    """Pictures that are dear to decode beside each picture model's example."""
    (work / "store").mkdir()
    with server(work) as record:
        return hostile_pictures.measure(record, work, options.rounds)


def accuracy(options: Namespace, work: Path) -> dict[str, Any]:
    """EfficientNet-Lite0 on every engine and precision."""
    from measuring.accuracy import measure

    return measure(options, work)


def earlier(options: Namespace, work: Path) -> dict[str, Any]:
    """The worker as it is against the worker of an earlier commit."""
    (work / "store").mkdir()
    with server(work) as record:
        return earlier_worker.compare(options, work, record)


def worker(options: Namespace, work: Path) -> dict[str, Any]:
    """Processor time of the worker as it is against that of an earlier commit, without a server."""
    (work / "store").mkdir()
    return worker_cost.compare(options, work)


def disasters(options: Namespace, work: Path) -> dict[str, Any]:
    """Killer bodies, SIGKILLs, scales and swaps under load."""
    from measuring.disasters import disasters as rounds

    return rounds(options.rounds, work)


def repeat(options: Namespace, work: Path) -> dict[str, Any]:
    """The tests that once lost a request, with every core busy."""
    from measuring.repeat import repeat as again

    return again(options.rounds)


def guard(options: Namespace, work: Path) -> dict[str, Any]:
    """What a guard adds to a batch of 8, around a handler that does nothing."""
    return guarding.measure(options.rounds)


def lean(options: Namespace, work: Path) -> dict[str, Any]:
    """MNIST straight to the server and through every front that was tried."""
    from measuring.lean import lean as fronts

    info = built("mnist", work)
    with server(work) as record:
        return fronts(options, work, record, info)


def records(options: Namespace, work: Path) -> dict[str, Any]:
    """64 records in one request against 64 requests of one."""
    from measuring.records import compare

    infos = [built(model, work) for model in ("mnist", "digits")]
    with server(work) as record:
        return compare(options, record, infos)


def scale(options: Namespace, work: Path) -> dict[str, Any]:
    """1 to 1,000 replicas by the measured lines, simulated; the figure stands beside the JSON."""
    figures = Path(__file__).resolve().parents[2] / "docs" / "figures"
    sources = {model: json.loads((figures / f"offline-{model}.json").read_text("utf-8")) for model in scaling.MODELS}
    proxy = scaling.Proxy.of(json.loads((figures / "hosts.json").read_text("utf-8"))["rows"])
    found = scaling.rows({model: LinearTime(**source["line"]) for model, source in sources.items()}, proxy)
    if options.json:
        scaling.draw(found, options.json.with_suffix(".svg"))
    return {"rows": found, "proxy": asdict(proxy)}


def nodes(options: Namespace, work: Path) -> dict[str, Any]:
    """A stand-in that only sleeps, on one and on two nodes of Ray, beside what the simulation says of it."""
    figures = Path(__file__).resolve().parents[2] / "docs" / "figures"
    proxy = scaling.Proxy.of(json.loads((figures / "hosts.json").read_text("utf-8"))["rows"])
    (work / "store").mkdir()
    info = inspect(study.standin(work / "store", ray_nodes.LINE))
    with server(work, "ray", max_replicas_per_node=str(ray_nodes.EACH)) as record, ray_nodes.second_node(record):
        found = ray_nodes.measure(record, info, proxy, options.rounds, options.seconds)
    return {"rows": found, "line": asdict(ray_nodes.LINE), "proxy": asdict(proxy)}


def jpeg(options: Namespace, work: Path) -> dict[str, Any]:
    """One JPEG with pillow and with simplejpeg."""
    from measuring.jpeg_decoding import measure

    return measure(options)


def starting(options: Namespace, work: Path) -> dict[str, Any]:
    """From `slotwise serve digits` to the first answer."""
    from measuring.starting import measure

    return measure(options, work)


def rollouts(options: Namespace, work: Path) -> dict[str, Any]:
    """Roll-outs of equal and of worse archives, simulated."""
    from measuring.rollouts import RATE, STEP_S, STEPS, rows

    return {"rows": rows(), "steps": STEPS, "step_s": STEP_S, "rate": RATE}


def bits(options: Namespace, work: Path) -> dict[str, Any]:
    """Whether mates change a bit of an answer, for every model on every engine."""
    from measuring.bit_for_bit import measure

    return measure(options, work)
