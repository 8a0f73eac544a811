"""A GPU: how far its answers are from the CPU's, whether it keeps rows apart, its speed, its memory, a served model. No Java.

Each section is measured for itself; what one cannot do stands in its place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.comparison.systems import Raw
from benchmarks.measuring.about import ROOT
from benchmarks.measuring.accuracy import BATCH, CALIBRATING, CUTS, JUDGED, MODEL, judged_cuts, photo_folder
from benchmarks.measuring.rounds import Cell, Reading, in_turn, rows
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import extract
from slotwise.archive.local_model import LocalModel
from slotwise.bench import load, offline
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord
from slotwise.worker import Headers, Pipeline, Request
from slotwise.worker.engines import load_engine
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.environment.settings import Settings, has_cuda
from slotwise.worker.separability.about import identity
from slotwise.worker.separability.proof import caller, proven
from slotwise.zoo import agreement, pictures
from tests.support.bit_for_bit import handler_of, try_engine
from tests.support.watched import watched

WEIGHTS = {"efficientnet": None, "resnet18": "none", "resnet152": "none"}
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
LOOP = {
    **{"engine": "torch", "precision": "fp16", "device": "cuda"},
    **{"threads": 1, "decode_threads": available_cores(), "batch_size": 32},
}
PRECISIONS = ("fp32", "fp16", "bf16")
MATES = (1, 2, 4, 7, 16)
SIZES = (1, 8, 32, 128)
CLIENTS = (8, 32, 128)
WORKERS = (1, 2)
ROWS = 256  # of the batch that does not fit
SCARCE = 900 * 2**20  # bytes that a worker may have beside its weights
KILLS = 3


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every section; raises SlotwiseError where torch sees no GPU."""
    if not has_cuda():
        raise SlotwiseError("torch sees no GPU here", "`slotwise doctor` says what there is")
    import torch

    gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    (work / "store").mkdir()
    found: dict[str, Any] = {"machine": gpu}
    infos: dict[str, ArchiveInfo] = {}
    for name, weights in WEIGHTS.items():
        found[f"built {name}"] = tried(lambda name=name, weights=weights: infos.update({name: built(name, work, weights)}))  # type: ignore[misc]
    folders = {name: extract(info.path, work / name) for name, info in infos.items()}
    sections: dict[str, Callable[[], Any]] = {
        "agreement": lambda: agreements(folders["efficientnet"]),
        "proof": lambda: [proof(folder, name, each) for name, folder in folders.items() for each in PRECISIONS],
        "bits": lambda: [bits(folders[name], name, each) for name in ("efficientnet", "resnet18") for each in PRECISIONS],
        "memory": lambda: memory(infos["efficientnet"], folders["efficientnet"]),
        "offline": lambda: [row for name, info in infos.items() for row in timed(info, name, options.seconds)],
        "captions": lambda: captions(options, work),
        "served": lambda: served(infos["efficientnet"], folders["efficientnet"], options, work),
    }
    for name, section in sections.items():
        started = time.perf_counter()
        found[name] = tried(section)
        say(f"{name}: {time.perf_counter() - started:.0f} s")
        if options.json:  # what was found is kept if the machine is taken away
            options.json.with_suffix(".part").write_text(json.dumps(found, indent=2), "utf-8")
    return found


def tried(section: Callable[[], Any]) -> Any:
    """What the section gives, or {"failed": what it raised}."""
    try:
        return section()
    except Exception as error:
        say("".join(traceback.format_exception(error)[-3:]))
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def captions(options: Namespace, work: Path) -> dict[str, Any]:
    """GIT base's real size with random weights: captions are noise, what they cost is not."""
    program, weights = str(ROOT / "scripts" / "random_weights.py"), work / "git"
    subprocess.run([sys.executable, program, "git-base", str(weights)], check=True, env=ENVIRON)
    info = built("captions", work, str(weights))
    folder = extract(info.path, work / "captions")
    return {
        "proof": [proof(folder, "captions", each) for each in PRECISIONS],
        "offline": list(timed(info, "captions", options.seconds)),
    }


def agreements(folder: Path) -> list[dict[str, Any]]:
    """EfficientNet-Lite0 on the GPU against the network in fp32 on the CPU, on cuts of photos (see accuracy.py)."""
    cuts, expected = judged_cuts(load_spec(MODEL))
    model = json.loads((folder / "slotwise.json").read_text("utf-8"))["model"]
    table = []
    for precision in PRECISIONS:
        engine = load_engine(folder, Settings(engine="torch", device="cuda", precision=precision, threads=4, model=model))
        observed = np.concatenate([np.asarray(engine(cuts[i : i + BATCH])) for i in range(0, CUTS, BATCH)])
        largest = float(np.abs(observed - expected).max())
        table.append(
            {"system": f"torch {precision}", "logits_apart": largest, **agreement.compare(expected, observed, precision, True)}
        )
    return table


def loaded(folder: Path, precision: str, changed: Callable[[Any], Any] = lambda kind: kind(), **changes: Any) -> Any:
    """The archive's handler with its engine on the GPU. changed: makes a handler of its class."""
    environ = {**os.environ, "SLOTWISE_PROFILE": "cuda"}
    handler = changed(handler_of(folder))
    handler.settings = Settings.load(folder, environ, gpu_id=0, batch_size=32).but(precision=precision, proof_s=0.0, **changes)
    handler.engine = handler.load(folder, handler.settings)
    return handler


def proof(folder: Path, name: str, precision: str) -> dict[str, Any]:
    """What a worker finds at its start, in 20 seconds at most."""
    started = time.perf_counter()
    handler = loaded(folder, precision)
    loaded_s = time.perf_counter() - started
    verdict = proven(handler, caller(handler), folder, 32, 20.0)
    seconds = round(time.perf_counter() - started - loaded_s, 2)
    row = {"model": name, "engine": identity(handler, folder).engine, "load_s": round(loaded_s, 2), "seconds": seconds}
    say(f"{name}, {row['engine']}: {verdict.sentence()}")
    return {**row, "sentence": verdict.sentence(), **verdict.to_json()}


def bits(folder: Path, name: str, precision: str) -> dict[str, Any]:
    """One row beside 1 to 16 mates, good, loud and broken, with both paddings: does a bit of its answer change?"""
    return try_engine(loaded(folder, precision, watched), folder, name, MATES).row()


def memory(info: ArchiveInfo, folder: Path) -> dict[str, Any]:
    """A batch that does not fit into the memory that the worker may take: who gets what, and in how many calls."""
    import torch

    photos = [(photo_folder() / name).read_bytes() for name in (*JUDGED, *CALIBRATING)]
    sent = [photos[i % len(photos)] for i in range(ROWS)]
    handler = loaded(folder, "fp32", batch_size=ROWS, response_timeout_s=600.0, decode_budget_ms=60_000.0)
    pipeline = Pipeline(handler)
    alone = [json.loads(pipeline.answer([Request(photo, Headers(), "alone")])[0].body)["label"] for photo in photos]

    def right(answers: Sequence[Any]) -> int:
        return sum(
            each.status == 200 and json.loads(each.body)["label"] == alone[i % len(alone)] for i, each in enumerate(answers)
        )

    calls: list[int] = []
    predict = handler.predict

    def counted(inputs: Any) -> Any:
        calls.append(len(inputs))
        return predict(inputs)

    handler.predict = counted
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + SCARCE) / total)
    rounds = []
    for _ in range(2):
        calls.clear()
        answers = pipeline.answer([Request(body, Headers(), str(i)) for i, body in enumerate(sent)])
        rounds.append({"right": right(answers), "statuses": sorted({each.status for each in answers}), "calls": list(calls)})
    torch.cuda.set_per_process_memory_fraction(1.0)
    changes = {"precision": "fp32", "memory_fraction": str(round(SCARCE / total, 4)), "decode_budget_ms": "60000"}
    with LocalModel(info.path, batch_size=ROWS, environ=offline.environment("cuda", changes)) as model:
        served = right(model.answer(sent))  # its warm-up ran out of memory already
    return {
        "rows": ROWS,
        "mib": SCARCE // 2**20,
        "rounds": rounds,
        "ceiling": pipeline.isolation.ceiling.rows,
        "started so": served,
    }


def timed(info: ArchiveInfo, name: str, seconds: float) -> Iterator[dict[str, Any]]:
    """The handler on full batches, as `slotwise bench --offline --profile cuda` times it."""
    bodies = [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]
    for precision in ("fp32", "fp16"):
        environ = offline.environment("cuda", {"precision": precision})
        timings = offline.measure(info.path, bodies, SIZES, seconds=min(1.0, seconds), environ=environ)
        say(f"{name} {precision}: {[round(1000 / each.item_ms) for each in timings]} a second")
        yield {"model": name, "precision": precision, "batches": [{**asdict(t), "item_ms": t.item_ms} for t in timings]}


def served(info: ArchiveInfo, folder: Path, options: Namespace, work: Path) -> dict[str, Any]:
    """Answers a second of our own host, beside the same engine in a loop; then bad bodies, and killed workers."""
    body = RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")
    (work / "body").write_bytes(body.data)
    table: list[dict[str, Any]] = []
    result: dict[str, Any] = {"rows": table}
    for workers in WORKERS:
        changes = {"initial_workers": str(workers)}
        with server(work, "slotwise", "gpu", of="cuda", **changes) as record, ExitStack() as stack:
            with ManagementClient(record) as client:
                deploy(client, info, registration(info, load_profile("cuda", changes, environ={}), {}))
            target, loop = Target.of(record, info.name), Raw("loop", folder, LOOP, workers)
            stack.callback(loop.stop)
            loop.start()
            load.measure(target, [body], LoadPlan(32, 3.0, warm_up_s=0))

            def ask(cell: Cell, system: str, target: Target = target, loop: Raw = loop) -> Reading:
                if system == "loop":
                    return loop.load(work / "body", options.seconds)
                return Reading.of(load.measure(target, [body], LoadPlan(cell[1], options.seconds, warm_up_s=0.5)))

            cells = [(f"efficientnet fp16, {workers} workers", clients) for clients in CLIENTS]
            table += rows(in_turn(cells, ["own host", "loop"], ask, options.rounds, say=say), detail=True)
            if workers == 1:
                poisoned = load.measure(target, [body], LoadPlan(32, options.seconds, poison=0.125))
                result["one bad in eight"] = {"good": round(poisoned.req_s * poisoned.seconds), **_counts(poisoned)}
                result["killed"] = killed(record, target, body)
    return result


def _counts(measured: load.LoadResult) -> dict[str, Any]:
    return {"lost": measured.errors, "refused": measured.refused, "mean_batch": round(measured.mean_batch, 1)}


def killed(record: ServerRecord, target: Target, body: RequestBody) -> dict[str, Any]:
    """32 clients while the worker, whose memory is on the GPU, is ended again and again."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.measure, target, [body], LoadPlan(32, 10.0 * KILLS, warm_up_s=0))
        ended = 0
        for _ in range(KILLS):
            time.sleep(8.0)
            for child in psutil.Process(record.pid).children(recursive=True):
                if "slotwise.worker" in " ".join(child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)
                    ended += 1
                    break
        measured = running.result()
    return {"workers_ended": ended, "answered": round(measured.req_s * measured.seconds), **_counts(measured)}
