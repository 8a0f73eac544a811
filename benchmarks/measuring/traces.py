"""Processor time of a request on our own host: its gateway without traces, and with 1% of them sent to a collector."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.on_hosts import bodies
from benchmarks.measuring.rounds import median_interval
from benchmarks.measuring.servers import built, server
from benchmarks.measuring.spent import cpu_s
from slotwise.bench import load, load_tools
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.server.record import ServerRecord
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

SETTING = TrialSetting(16, 1, 2, 1, "onnxruntime", "fp32")
SHARE = 0.01
CLIENTS = (1, 16)
WARM_UP_S = 5.0
PASSES = 4  # of each in a round; the median counts


class Collector(BaseHTTPRequestHandler):
    """Takes what an OTLP exporter sends, and keeps nothing but how much."""

    taken = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Collector.taken += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Rounds in turn of two hosts that differ in nothing else; the ratio of their processor times, round by round."""
    info = built("mnist", work)
    sent = bodies(info)
    with ExitStack() as stack:
        collector = stack.enter_context(_collecting())
        records = {name: stack.enter_context(server(work, "slotwise", name)) for name in ("off", "on")}
        targets = {}
        for name, record in records.items():
            traced = ["--traces", collector, "--trace-share", str(SHARE)] if name == "on" else []
            arguments = ["--name", name, "--port", "0", "--translation-port", "-1", *traced]
            front = gateway_process.start_detached(name, arguments)
            stack.callback(gateway_process.stop, name)
            bench = stack.enter_context(LiveBench(record, info, sent))
            bench.keep_ready([SETTING])
            model = bench.serve(SETTING)
            while model not in {one["name"] for one in front.status()["models"] if one["ready_workers"]}:
                time.sleep(0.2)
            targets[name] = Target(f"{front.url}/predictions/{model}", {})
            load.measure(targets[name], sent, LoadPlan(max(CLIENTS), WARM_UP_S, warm_up_s=0))
        turns = stack.enter_context(OneAtATime({name: record.pid for name, record in records.items()}))

        def us_a_request(name: str, clients: int) -> float:
            with turns.running(name):
                before = _spent_us(records[name])
                found = load_tools.measure(options.tool, targets[name], sent, LoadPlan(clients, options.seconds, warm_up_s=0))
                assert not found.lost
                return (_spent_us(records[name]) - before) / found.requests

        rows = [_row(clients, options.rounds, us_a_request) for clients in CLIENTS]
    return {"share": SHARE, "taken": Collector.taken, "rows": rows}


def _row(clients: int, rounds: int, us_a_request: Any) -> dict[str, Any]:
    table = []
    for turn in range(rounds):
        spent: dict[str, list[float]] = {"off": [], "on": []}
        for step in range(PASSES):
            for name in ("off", "on") if (turn + step) % 2 else ("on", "off"):
                spent[name].append(us_a_request(name, clients))
        table.append({name: round(median(times), 1) for name, times in spent.items()})
        say(f"{clients} clients, round {turn + 1}: {table[-1]}")
    ratios = [round(one["on"] / one["off"], 4) for one in table]
    interval = median_interval(ratios)
    say(f"{clients} clients: {median(ratios):.3f} of without, 95% interval {interval}")
    return {"clients": clients, "rounds": table, "ratios": ratios, "interval": interval and interval._asdict()}


@contextmanager
def _collecting() -> Iterator[str]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()


def _spent_us(record: ServerRecord) -> float:
    return 1e6 * cpu_s(None, record)["server"]
