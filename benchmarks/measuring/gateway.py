"""What the gateway adds to a request, what it does at twice its capacity, and what hedging saves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring.overload import overload
from benchmarks.measuring.rounds import WARM_UP_S, Cell, Reading, in_turn, ratio, rows
from benchmarks.measuring.servers import built, deployed, server
from benchmarks.measuring.spent import cpu_s
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.inference import auth_headers
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.profiles.ports import Ports
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting
from slotwise.worker.engines.processor import has_bf16
from slotwise.zoo import pictures
from tests.frontend.standin import StandIn


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
                before = cpu_s(process, record)
                measured = load_tools.measure(options.tool, target, bodies, LoadPlan(cell[1], options.seconds, warm_up_s=0))
                after = cpu_s(process, record)
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


@contextmanager
def standin(home: Path) -> Iterator[StandIn]:
    """A stand-in for a model server in a thread of its own, with the record that a gateway of this $SLOTWISE_HOME reads."""
    server, up, over = StandIn(batch_size=16, takes_s=(0.02, 0.1)), threading.Event(), threading.Event()
    (folder := home / "default").mkdir()

    async def serve() -> None:
        async with server:
            server.record(folder).save()
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    up.wait()
    try:
        yield server
    finally:
        over.set()
        thread.join()


def hedging(options: Namespace, work: Path) -> dict[str, Any]:
    """A stand-in server behind the gateway: all requests answered, and one in 50 never."""
    os.environ["SLOTWISE_HOME"] = str(work)
    every = {"all answer": 0, "one in 50 hangs": 50}
    sent: dict[str, list[float]] = {system: [] for system in every}
    with standin(work) as server:
        front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
        target = Target(f"{front.url}/predictions/digits", {})

        def measure(cell: Cell, system: str) -> Reading:
            server.hang_every, before = every[system], len(server.seen)
            measured = load.measure(
                target, [RequestBody(b"x")], LoadPlan(cell[1], None, requests=int(200 * options.seconds), warm_up_s=0)
            )
            sent[system].append(round((len(server.seen) - before) / measured.requests, 4))
            return Reading.of(measured)

        try:
            while not front.status()["ready"]:
                time.sleep(0.1)
            readings = in_turn([("20 to 100 ms", 16)], list(every), measure, options.rounds, say=say, warm_ups=1)
        finally:
            gateway_process.stop()
    (by_system,) = readings.values()
    slowest = {system: [r.p99_ms or 0.0 for r in rounds] for system, rounds in by_system.items()}
    slower = ratio(slowest["one in 50 hangs"], slowest["all answer"]) if all(slowest["one in 50 hangs"]) else None
    return {"rows": rows(readings, detail=True), "p99_ratio": slower and slower._asdict(), "copies_per_request": sent}
