"""Captions and translation at the size of what others measured, with random weights: GIT base, and M2M100 of 418 million.

Their memory and the arithmetic of a step are those of the real ones. Texts are noise and end after a few tokens, so seconds say
nothing about a translation; what a second picture, record or process costs beside the first one does.
"""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring.about import ROOT
from benchmarks.measuring.rounds import Cell, Reading, in_turn, rows
from benchmarks.measuring.servers import built, server
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load, offline
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadResult, percentile
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.server.record import ServerRecord
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

TIMEOUT_S = 600.0
START_TIMEOUT_S = 2400.0  # it tries a full batch at its start, of the longest that it takes
SIZES = (1, 2, 4, 8, 16, 32, 64)  # theirs were out of memory at 128
CLIENTS = (1, 8, 16)
LAYOUTS = {
    "one process": TrialSetting(max(CLIENTS), 1, workers=1, threads=2),
    "two processes": TrialSetting(max(CLIENTS), 1, workers=2, threads=1),
}
SHARES = (5, 10, 25, 50, 75, 90, 95, 99, 100)  # percent of the answers, sorted by their time
RECORDS = (1, 2, 4, 8, 16)
REFUSED = "int8/refused.txt"  # why a build left int8 out
PRECISIONS = {"ctranslate2": "int8", "transformers": "fp32"}


def random_weights(size: str, model: str, work: Path) -> ArchiveInfo:
    """The model's archive with random weights of that size."""
    folder = work / size
    say(f"making {size}")
    subprocess.run([sys.executable, str(ROOT / "scripts" / "random_weights.py"), size, str(folder)], check=True)
    return built(model, work, str(folder))


def captions(options: Namespace, work: Path) -> dict[str, Any]:
    """GIT base: its parts' times by batch size without a server; then one process beside two, at 1, 8 and 16 clients."""
    (work / "store").mkdir()
    info = random_weights("git-base", "captions", work)
    bodies = examples(str(info.path))
    timed = offline.measure(
        info.path,
        bodies,
        SIZES,
        seconds=options.seconds,
        environ=offline.environment("cpu", {}),
        done=lambda one: say(f"batch of {one.n}: {one.batch_ms:.0f} ms"),
    )
    times: dict[str, dict[int, list[LoadResult]]] = {name: {clients: [] for clients in CLIENTS} for name in LAYOUTS}
    with server(work) as record, LiveBench(record, info, bodies, timeout_s=TIMEOUT_S) as bench:
        bench.keep_ready(list(LAYOUTS.values()))

        def ask(cell: Cell, system: str) -> Reading:
            result = bench.measure(LAYOUTS[system], cell[1], options.seconds)
            times[system][cell[1]].append(result)
            return Reading.of(result)

        cells = [("captions", clients) for clients in CLIENTS]
        found = in_turn(cells, list(LAYOUTS), ask, options.rounds, say=say)
    if options.json:
        draw(times, options.json.with_suffix(".svg"))
    return {
        "batches": [{**asdict(one), "item_ms": one.item_ms} for one in timed],
        "rows": rows(found, detail=True),
        "times": [
            {"system": name, "clients": clients, "within_ms": within(results)}
            for name, by_clients in times.items()
            for clients, results in by_clients.items()
        ],
    }


def within(results: Sequence[LoadResult]) -> dict[str, float]:
    """Within how many ms so many percent of all rounds' answers came."""
    every = sorted(one for result in results for one in result.latencies_ms)
    return {str(share): round(percentile(every, share), 1) for share in SHARES}


def draw(times: Mapping[str, Mapping[int, Sequence[LoadResult]]], path: Path) -> None:
    """The sorted response times of each number of clients, a panel a layout."""
    from slotwise.bench.report import panels

    figure, axes = panels(len(times))
    for axis, (name, by_clients) in zip(axes, times.items(), strict=True):
        for clients, results in by_clients.items():
            every = sorted(one for result in results for one in result.latencies_ms)
            reached = [100 * (i + 1) / len(every) for i in range(len(every))]
            axis.step(every, reached, where="post", label=f"{clients} clients")
        axis.set(title=name, xlabel="latency, ms", ylabel="answered within, %", ylim=(0, 101))
        axis.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def translation(options: Namespace, work: Path) -> dict[str, Any]:
    """M2M100 of 418 million on each engine: seconds to READY, memory, and answers of 1 to 16 records, one client at a time."""
    (work / "store").mkdir()
    info = random_weights("m2m100_418M", "translation", work)
    life = next(body for body in examples(str(info.path)) if body.name == "life.json")
    found, left_out = [], {}
    with zipfile.ZipFile(info.path) as archive:
        if REFUSED in archive.namelist():  # its worker would never start
            left_out["ctranslate2"] = archive.read(REFUSED).decode().strip()
            say(f"LEFT OUT: ctranslate2: {left_out['ctranslate2']}")
    for engine, precision in PRECISIONS.items():
        if engine in left_out:
            continue
        with server(work, name=engine, engine=engine, precision=precision) as record:
            try:
                found.append({"engine": engine, "precision": precision, **served(record, info, life, options)})
            except SlotwiseError as error:
                left_out[engine] = error.message
                say(f"LEFT OUT: {engine}: {error.message}")
    return {"engines": found, "left_out": left_out, "archive_mib": round(info.path.stat().st_size / 2**20)}


def served(record: ServerRecord, info: ArchiveInfo, life: RequestBody, options: Namespace) -> dict[str, Any]:
    """One worker: how long until it is READY, how much memory it has then and afterwards, and what it answers."""
    with ManagementClient(record) as client:
        began = time.monotonic()
        client.register(info.path.name, name=info.name, batch_size=max(RECORDS), max_batch_delay=2, initial_workers=1)
        client.wait_ready(info.name, 1, timeout_s=START_TIMEOUT_S)
        ready_s = time.monotonic() - began
        pids = [worker.pid for worker in client.describe(info.name).workers]
        before_mib = memory_mib(pids)
        target = Target.of(record, info.name)

        def ask(cell: Cell, system: str) -> Reading:
            plan = LoadPlan(cell[1], options.seconds, timeout_s=TIMEOUT_S)
            return Reading.of(load.measure(target, [with_records(life, int(system))], plan))

        readings = in_turn([("records", 1), ("records", 8)], [str(n) for n in RECORDS], ask, options.rounds, say=say)
        after_mib = memory_mib(pids)
        client.unregister(info.name)
    memory = {"ready_mib": before_mib, "after_mib": after_mib}
    return {"ready_s": round(ready_s, 1), **memory, "rows": rows(readings, detail=True)}


def memory_mib(pids: Sequence[int]) -> int:
    """What these processes have in memory together."""
    return round(sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20)
