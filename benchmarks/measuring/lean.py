"""What the gateway costs where the model costs little: MNIST, straight to the server and through every front that was tried."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from measuring.about import ROOT, git
from measuring.rounds import Cell, Reading, in_turn, ratio, rows
from slotwise.bench import load_tools
from slotwise.bench.bodies import examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.errors import SlotwiseError
from slotwise.server.lifecycle import ServerRecord
from slotwise.tune.space import TrialSetting
from slotwise.tune.variant import write_variant

SETTINGS = {32: TrialSetting(16, 1, 2, 1), 8: TrialSetting(4, 1, 1, 2)}  # clients: as `echo` has them
SHORTEST = [("uvicorn", "aiohttp"), ("uvicorn", "slotwise"), ("granian", "aiohttp"), ("granian", "slotwise")]
UP_S = 60.0
Front = tuple[str, psutil.Process | None]  # its address; no process for the server itself
LAYERS = {  # where a line of a profile belongs: the first that is found in it
    "prometheus_client": "metrics",
    "slotwise/client/http_exchange": "client",
    "slotwise/gateway/connection_pool": "client",
    "aiohttp": "client",
    "slotwise/": "gateway",
    "uvicorn": "server",
    "starlette": "app",
    "fastapi": "app",
    "asyncio": "event loop",
}


def lean(options: Namespace, work: Path, record: ServerRecord, info: Any) -> dict[str, Any]:
    """All fronts before one server, rounds in turn; what a request costs in the front, the server and the client."""
    load = psutil.getloadavg()[0]  # what others do, before this begins
    for clients, setting in SETTINGS.items():
        register(record, info, f"mnist-{clients}", setting)
    bodies = [body for body in examples(str(info.path)) if body.name.endswith(".f32")]
    spent: dict[tuple[Cell, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        fronts: dict[str, Front] = {"direct": (record.inference_url, None)}
        if options.commit:
            fronts["gateway before"] = stack.enter_context(_gateway(record, work / "before", _tree(options.commit, work)))
        fronts["gateway"] = stack.enter_context(_gateway(record, work / "now", ROOT))
        for server, client in SHORTEST:
            if find_spec(server) is None:
                say(f"{server} is not installed: left out")
            else:
                fronts[f"{server}, {client}"] = stack.enter_context(_shortest(record, server, client))

        def measure(cell: Cell, system: str) -> Reading:
            url, front = fronts[system]
            target = Target(f"{url}/predictions/mnist-{cell[1]}", {} if front else auth_headers(record))
            load_tools.measure("wrk", target, bodies, LoadPlan(cell[1], 1, warm_up_s=0))
            before = cpu_s(front, record)
            measured = load_tools.measure("wrk", target, bodies, LoadPlan(cell[1], options.seconds, warm_up_s=0))
            after = cpu_s(front, record)
            each = {name: 1e6 * (after[name] - before[name]) / max(measured.requests, 1) for name in after}
            spent.setdefault((cell, system), []).append(each)
            return Reading.of(measured)

        cells = [(str(setting), clients) for clients, setting in SETTINGS.items()]
        readings = in_turn(cells, list(fronts), measure, options.rounds, say=say, warm_ups=1)
        profile = _profile(fronts["gateway"], bodies, options.seconds, work)
    table = rows(readings, detail=True)
    for row in table:
        cell = (row["workload"], row["concurrency"])
        counted = spent[cell, row["system"]][-options.rounds :]
        row["us"] = {name: round(median(each[name] for each in counted)) for name in counted[0]}
        direct = [reading.rps for reading in readings[cell]["direct"]]
        of_direct = ratio(row["rounds"], direct)
        row["to_direct"] = of_direct and of_direct._asdict()
    return {
        "before": options.commit and git("rev-parse", "--short", options.commit),
        "load": round(load, 1),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "rows": table,
        "profile": profile,
    }


def register(record: ServerRecord, info: Any, name: str, setting: TrialSetting) -> None:
    """Serve the model under that name, with that setting."""
    archive = record.model_store / f"{name}.mar"
    wishes: dict[str, int | str] = {"initial_workers": setting.workers, "threads": setting.threads}
    write_variant(info.path, archive, record.profile, wishes)
    with ManagementClient(record) as client:
        sizes = {"batch_size": setting.batch_size, "max_batch_delay": setting.max_batch_delay}
        client.register(archive.name, name=name, initial_workers=setting.workers, **sizes)
        client.wait_ready(name, setting.workers)


def _tree(commit: str, work: Path) -> Path:
    """That commit's slotwise."""
    tree = work / "tree"
    tree.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "slotwise"], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


@contextmanager
def _gateway(record: ServerRecord, home: Path, tree: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A gateway whose code is in `tree`, in front of the server; its state is below `home`."""
    (home / "default").mkdir(parents=True)
    record.save(home / "default")
    environ = {**os.environ, "SLOTWISE_HOME": str(home), "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "slotwise.cli", "gateway", "--port", "0", "--translation-port", "-1"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=environ, stdout=log, stderr=log)
    with _ended(process):
        url = _waited_for(lambda: str(json.loads((home / "default" / "gateway.json").read_text("utf-8"))["url"]), process)
        yield url, psutil.Process(process.pid)


@contextmanager
def _shortest(record: ServerRecord, server: str, client: str) -> Iterator[tuple[str, psutil.Process]]:
    script = Path(__file__).parent / "fronts" / "shortest.py"
    process = subprocess.Popen(
        [sys.executable, str(script), server, client], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with _ended(process):
        assert process.stdin
        assert process.stdout
        upstream = {"url": record.inference_url, "headers": auth_headers(record)}
        process.stdin.write(json.dumps(upstream) + "\n")
        process.stdin.flush()
        port = int(process.stdout.readline())

        def url() -> str:
            socket.create_connection(("127.0.0.1", port)).close()
            return f"http://127.0.0.1:{port}"

        yield _waited_for(url, process), psutil.Process(process.pid)


@contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(UP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _waited_for(read: Callable[[], str], process: subprocess.Popen[Any]) -> str:
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return read()
        except (OSError, ValueError, KeyError):
            time.sleep(0.1)
    raise SlotwiseError("a front did not start")


def cpu_s(front: psutil.Process | None, record: ServerRecord) -> dict[str, float]:
    """The processor seconds that were spent so far: in the front, in the server with its workers, in the client."""
    server = psutil.Process(record.pid)
    finished = resource.getrusage(resource.RUSAGE_CHILDREN)  # wrk
    return {
        "front": spent_s(front) if front else 0.0,
        "server": sum(map(spent_s, [server, *server.children(recursive=True)])),
        "client": finished.ru_utime + finished.ru_stime,
    }


def spent_s(process: psutil.Process) -> float:
    """The processor seconds that a process has spent so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _profile(front: Front, bodies: Any, seconds: float, work: Path) -> dict[str, float] | None:
    """The share of the gateway's time that each layer has itself, under 32 clients; None without py-spy."""
    spy_program = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if spy_program is None:
        say("py-spy is not installed: no profile")
        return None
    url, process = front
    assert process is not None
    file = work / "profile"
    command = [spy_program, "record", "--pid", str(process.pid), "--duration", str(max(1, round(seconds)))]
    command += ["--format", "raw", "--output", str(file)]
    spy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    load_tools.measure("wrk", Target(f"{url}/predictions/mnist-32", {}), bodies, LoadPlan(32, seconds + 1, warm_up_s=0))
    spy.wait(60)
    counts: Counter[str] = Counter()
    for line in file.read_text("utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        counts[_layer(stack.split(";"))] += int(count)
    return {layer: round(count / counts.total(), 3) for layer, count in counts.most_common()}


def _layer(stack: list[str]) -> str:
    """The layer of the innermost frame that belongs to one."""
    for frame in reversed(stack):
        for part, layer in LAYERS.items():
            if part in frame:
                return layer
    return "other"
