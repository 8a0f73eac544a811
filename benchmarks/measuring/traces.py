"""Processor time of a request on our own host: its gateway without traces, and with 1% of them sent to a collector."""

from __future__ import annotations

import json
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring.on_hosts import bodies
from benchmarks.measuring.rounds import median_interval
from benchmarks.measuring.servers import built, server
from benchmarks.measuring.spent import cpu_s
from slotwise.bench import load, load_tools
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.frontend.listening import bound
from slotwise.host.front_options import listen_address
from slotwise.host.model_versions import LOADING_S
from slotwise.host.opened_fronts import END, LONGEST, address
from slotwise.server.record import ServerRecord
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting

SETTING = TrialSetting(16, 1, 2, 1, "onnxruntime", "fp32")
SHARE = 0.01
CLIENTS = (1, 16)
WARM_UP_S = 5.0
NAME = "traces"


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
    """Two fronts in the process of one host, before the same workers; the ratio of the processor times that they cost.

    Two hosts would not do: two that differ in nothing take up to 15% more or less than each other for as long as they live. The
    gateway's own front would not, either: one that is opened beside it takes up to 3% more.
    """
    info = built("mnist", work)
    sent = bodies(info)
    with ExitStack() as stack:
        collector = stack.enter_context(_collecting())
        record = stack.enter_context(server(work, "slotwise", NAME))
        bench = stack.enter_context(LiveBench(record, info, sent))
        bench.keep_ready([SETTING])
        model = bench.serve(SETTING)
        front = gateway_process.start_detached(NAME, ["--name", NAME, "--port", "0", "--translation-port", "-1"])
        stack.callback(gateway_process.stop, NAME)
        options_of = {"off": front.options, "on": {**front.options, "traces": collector, "trace_share": SHARE}}
        urls = {name: stack.enter_context(_front(record, these)) for name, these in options_of.items()}
        targets = {name: Target(f"{url}/predictions/{model}", {}) for name, url in urls.items()}
        while model not in {one["name"] for one in front.status()["models"] if one["ready_workers"]}:
            time.sleep(0.2)
        for target in targets.values():
            load.measure(target, sent, LoadPlan(max(CLIENTS), WARM_UP_S, warm_up_s=0))

        def us_a_request(name: str, clients: int) -> float:
            before = _spent_us(record)
            found = load_tools.measure(options.tool, targets[name], sent, LoadPlan(clients, options.seconds, warm_up_s=0))
            assert not found.lost
            return (_spent_us(record) - before) / found.requests

        rows = [_row(clients, options.rounds, us_a_request) for clients in CLIENTS]
    return {"share": SHARE, "taken": Collector.taken, "rows": rows}


def _row(clients: int, rounds: int, us_a_request: Callable[[str, int], float]) -> dict[str, Any]:
    table = []
    for turn in range(rounds):
        order = ("off", "on") if turn % 2 else ("on", "off")
        table.append({name: round(us_a_request(name, clients), 1) for name in order})
        if turn % 10 == 9:
            say(f"{clients} clients, round {turn + 1}: {table[-1]}")
    ratios = [round(one["on"] / one["off"], 4) for one in table]
    interval = median_interval(ratios)
    say(f"{clients} clients: {median(ratios):.3f} of without, 95% interval {interval}")
    return {"clients": clients, "rounds": table, "ratios": ratios, "interval": interval and interval._asdict()}


@contextmanager
def _front(record: ServerRecord, options: dict[str, Any]) -> Iterator[str]:
    """One more front in the process of this host, as `slotwise gateway` opens its own there; its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(LOADING_S)
        connection.connect(address(record.tmp_dir))
        sockets = bound(listen_address({**options, "port": 0, "grpc_port": -1}))
        message = json.dumps({"options": {**options, "grpc_port": -1}, "restarts": 0, "models": []})
        socket.send_fds(connection, [message.encode()], [one.fileno() for one in sockets])
        yield json.loads(connection.recv(LONGEST))["url"]
        connection.send(END)


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
