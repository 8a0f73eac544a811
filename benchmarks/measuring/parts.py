"""The parts of docs/measured-*.md that no `slotwise` command measures by itself. Each returns rows, and what else it found."""

from __future__ import annotations

import json
import zipfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measuring import guarding, on_hosts, ray_nodes, scaling, worker_cost
from benchmarks.measuring import hostile as hostile_pictures
from benchmarks.measuring import stress as stress_cases
from benchmarks.measuring import study as batching
from benchmarks.measuring.about import ROOT
from benchmarks.measuring.gateway import gateway as gateway
from benchmarks.measuring.gateway import hedging as hedging
from benchmarks.measuring.rounds import Cell, Reading, Readings, in_turn, rows
from benchmarks.measuring.servers import built, deployed, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.offline import LinearTime
from slotwise.console import say
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import BATCH_SIZES, TrialSetting
from slotwise.tune.tuning import baselines
from slotwise.worker.environment.cores import available_cores
from slotwise.zoo import pictures
from tests.support.ray_nodes import second_node
from tests.support.sleeper import sleeper

HANDLERS, FIGURES = Path(__file__).parent / "handlers", ROOT / "docs" / "figures"
TUNED = {
    64: [TrialSetting(16, 1, 2, 1)],
    8: [TrialSetting(4, 1, 1, 2), TrialSetting(1, 1, 2, 1)],
}  # clients: what tune found, and batch 1


def _measured_by(module: str, function: str = "measure") -> Callable[[Namespace, Path], dict[str, Any]]:
    """What that module measures; it is imported when that is asked for."""

    def part(options: Namespace, work: Path) -> dict[str, Any]:
        found: dict[str, Any] = getattr(import_module(f"benchmarks.measuring.{module}"), function)(options, work)
        return found

    return part


accuracy = _measured_by("accuracy")
adversaries = _measured_by("adversaries")
by_steps = _measured_by("by_steps")
captions_large = _measured_by("real_size", "captions")
day = _measured_by("day")
decoded = _measured_by("decoded")
dropped = _measured_by("dropped")
fairness = _measured_by("fairness")
gpu = _measured_by("on_gpu")
instances = _measured_by("instances")
loads = _measured_by("loads")
mnist_triton = _measured_by("on_triton")
one_word = _measured_by("one_word")
own_host = _measured_by("own_host")
starting = _measured_by("starting")
streams_beside = _measured_by("streams_beside")
traces = _measured_by("traces")
translation_large = _measured_by("real_size", "translation")
unread = _measured_by("unread")
worker = _measured_by("worker_cost", "compare")


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
    """The same archives on TorchServe, MMS, Ray, Triton and our own host, all of them up, one asked after the other."""
    infos = {"mnist": built("mnist", work), "resnet18": built("resnet18", work, "none")}
    with ExitStack() as servers:
        records = {kind: servers.enter_context(server(work, kind, kind)) for kind in on_hosts.HOSTS}
        return on_hosts.measure(records, infos, options.rounds, options.seconds)


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


def hostile(options: Namespace, work: Path) -> dict[str, Any]:
    """Pictures that are dear to decode beside each picture model's example."""
    with server(work) as record:
        return hostile_pictures.measure(record, work, options.rounds)


def disasters(options: Namespace, work: Path) -> dict[str, Any]:
    """Killer bodies, SIGKILLs, scales and swaps under load."""
    from benchmarks.measuring.disasters import disasters as rounds

    return rounds(options.rounds, work)


def guard(options: Namespace, work: Path) -> dict[str, Any]:
    """What a guard adds to a batch of 8, around a handler that does nothing."""
    return guarding.measure(options.rounds)


def records(options: Namespace, work: Path) -> dict[str, Any]:
    """64 records in one request against 64 requests of one."""
    from benchmarks.measuring.records import compare

    infos = [built(model, work) for model in ("mnist", "digits")]
    with server(work) as record:
        return compare(options, record, infos)


def _kept(name: str) -> dict[str, Any]:
    """What an earlier measurement gave."""
    return dict(json.loads((FIGURES / f"{name}.json").read_text("utf-8")))


def scale(options: Namespace, work: Path) -> dict[str, Any]:
    """1 to 1,000 replicas by the measured lines, simulated; the figure stands beside the JSON."""
    sources = {model: _kept(f"offline-{model}") for model in scaling.MODELS}
    proxy = scaling.RAYS_OWN
    found = scaling.rows({model: LinearTime(**source["line"]) for model, source in sources.items()}, proxy)
    if options.json:
        scaling.draw(found, options.json.with_suffix(".svg"))
    return {"rows": found, "proxy": asdict(proxy)}


def study(options: Namespace, work: Path) -> dict[str, Any]:
    """The batching study: as published, on a stand-in that sleeps, and on a model; the figure stands beside the JSON."""
    info = built(options.model, work, worker_cost.WEIGHTS.get(options.model))
    model = [
        batching.Studied(f"{info.name}, {workers} workers", info, examples(str(info.path)), workers)
        for workers in dict.fromkeys([batching.WORKERS, available_cores()])
    ]
    standin = batching.Studied("a stand-in that sleeps", inspect(sleeper(work / "store")), [RequestBody(b"x")])
    with server(work, job_queue_size=str(batching.QUEUE)) as record:
        found = batching.measure(record, [standin, *model], options.rounds, options.seconds)
    if options.json:
        batching.draw(found, options.json.with_suffix(".png"))
    return {"model": info.name, **found}


def study152(options: Namespace, work: Path) -> dict[str, Any]:
    """The batching study on ResNet-152 itself, with as much of the published sweep as the machine answers in time."""
    info = built("resnet152", work, "none")
    bodies = [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]
    with server(work, job_queue_size=str(batching.QUEUE), number_of_netty_threads=str(batching.NETTY_THREADS)) as record:
        curves = {
            str(workers): asdict(
                batching.curves(
                    record,
                    batching.Studied(f"{info.name}, {workers} worker(s)", info, bodies, workers),
                    options.rounds,
                    options.seconds,
                    batching.FEW_CLIENTS,
                )
            )
            for workers in (1, batching.WORKERS)
        }
    return {"clients": batching.FEW_CLIENTS, "delays": batching.DELAYS, "delay_ms": batching.DELAY_MS, "curves": curves}


def nodes(options: Namespace, work: Path) -> dict[str, Any]:
    """A stand-in that only sleeps, on one and on two nodes of Ray, beside what the simulation says of it."""
    proxy = scaling.Proxy.of(_kept("hosts")["rows"])
    info = inspect(sleeper(work / "store", ray_nodes.LINE))
    with server(work, "ray", max_replicas_per_node=str(ray_nodes.EACH)) as record, second_node(record):
        found = ray_nodes.measure(record, info, proxy, options.rounds, options.seconds)
    return {"rows": found, "line": asdict(ray_nodes.LINE), "proxy": asdict(proxy)}


def rollouts(options: Namespace, work: Path) -> dict[str, Any]:
    """Roll-outs of equal and of worse archives, simulated."""
    from benchmarks.measuring.rollouts import measure

    return measure()


def bits(options: Namespace, work: Path) -> dict[str, Any]:
    """Whether mates change a bit of an answer, for every model on every engine."""
    from benchmarks.measuring.bit_for_bit import measure

    with server(work) as record:
        return measure(record, work)
