"""What the gateway costs where the model costs little: MNIST, straight to the server and through every front that was tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
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


def lean(options: Namespace, work: Path, record: ServerRecord, info: Any) -> dict[str, Any]:
    """All fronts before one server, rounds in turn; what a request costs in the front, the server and the client."""
    for clients, setting in SETTINGS.items():
        _register(record, info, f"mnist-{clients}", setting)
    bodies = [body for body in examples(str(info.path)) if body.name.endswith(".f32")]
    spent: dict[tuple[Cell, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        fronts = {"direct": (record.inference_url, None)}
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
            before = _cpu_s(front, record)
            measured = load_tools.measure("wrk", target, bodies, LoadPlan(cell[1], options.seconds, warm_up_s=0))
            after = _cpu_s(front, record)
            each = {name: 1e6 * (after[name] - before[name]) / max(measured.requests, 1) for name in after}
            spent.setdefault((cell, system), []).append(each)
            return Reading.of(measured)

        cells = [(str(setting), clients) for clients, setting in SETTINGS.items()]
        readings = in_turn(cells, list(fronts), measure, options.rounds, say=say, warm_ups=1)
    table = rows(readings, detail=True)
    for row in table:
        cell = (row["workload"], row["concurrency"])
        counted = spent[cell, row["system"]][-options.rounds :]
        row["us"] = {name: round(median(each[name] for each in counted)) for name in counted[0]}
        direct = [reading.rps for reading in readings[cell]["direct"]]
        of_direct = ratio(row["rounds"], direct)
        row["to_direct"] = of_direct and of_direct._asdict()
    return {"before": options.commit and git("rev-parse", "--short", options.commit), "rows": table}


def _register(record: ServerRecord, info: Any, name: str, setting: TrialSetting) -> None:
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
    command = [
        sys.executable,
        "-m",
        "slotwise.cli",
        "gateway",
        "--port",
        "0",
        "--translation-port",
        "-1",
        "--drain-delay-s",
        "0",
    ]
    process = subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.DEVNULL)
    with _ended(process):
        url = _waited_for(lambda: json.loads((home / "default" / "gateway.json").read_text("utf-8"))["url"], process)
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
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", psutil.Process(process.pid)


@contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _waited_for(read: Any, process: subprocess.Popen[Any]) -> str:
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return str(read())
        except (OSError, ValueError, KeyError):
            time.sleep(0.1)
    raise SlotwiseError("a front did not start")


def _cpu_s(front: psutil.Process | None, record: ServerRecord) -> dict[str, float]:
    """The processor seconds that were spent so far: in the front, in the server with its workers."""
    server = psutil.Process(record.pid)
    return {"front": _spent(front) if front else 0.0, "server": sum(map(_spent, [server, *server.children(recursive=True)]))}


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
