"""Seconds from `slotwise serve digits` to the first answer, and where they go: before, and now.

Before is as TorchServe does it by itself: Java without the cache, with JMX for log4j and with code made for each reflection,
and workers that import torch whatever the engine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.measuring.rounds import ratio
from slotwise.archive.build import build
from slotwise.bench.bodies import examples
from slotwise.client.inference import InferenceClient
from slotwise.console import say
from slotwise.deploy.java_training import train
from slotwise.profiles.memory import resident_bytes
from slotwise.server.java.cache import SWITCH
from slotwise.server.lifecycle import ServerRecord, stop
from slotwise.server.processes import start_time

MODEL, NAME = "digits", "start"
AS_BY_ITSELF = ("-Dlog4j2.disableJmx=false", "-Djdk.reflect.useNativeAccessorOnly=false")
SYSTEMS = {"before": {SWITCH: "0", "_JAVA_OPTIONS": " ".join(AS_BY_ITSELF)}, "now": {SWITCH: "1"}}
WITH_TORCH = """\
import sys
from slotwise import cli
from slotwise.server.java import worker_start
worker_start.python = lambda folder: sys.executable
cli.main()
"""
PROGRAMS = {"before": ["-c", WITH_TORCH], "now": ["-m", "slotwise.cli"]}
PARTS = ("java", "java_cpu", "worker", "model", "rest", "all", "memory_mib")
UP_S = 300.0
LOGGED = r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}) .*"


class JavaWatch(threading.Thread):
    """Notes when the server's Java was started, when its APIs answer, and the CPU time that it had taken by then."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self.state = state
        self.started_s = self.up_s = self.cpu_s = 0.0

    def run(self) -> None:
        """Until both APIs listen."""
        deadline = time.time() + UP_S
        while ((record := ServerRecord.load(self.state)) is None or not record.pid) and time.time() < deadline:
            time.sleep(0.01)  # a server that is about to start has a record, without a process
        assert record is not None
        java = psutil.Process(record.pid)
        self.started_s = started(record.pid)
        waiting = {record.ports.inference, record.ports.management}
        while waiting and time.time() < deadline:
            waiting -= {entry.laddr.port for entry in java.net_connections("tcp") if entry.status == psutil.CONN_LISTEN}
            self.up_s, spent = time.time(), java.cpu_times()
            self.cpu_s = spent.user + spent.system
            time.sleep(0.01)


def started(pid: int) -> float:
    """When a process started, as time.time() counts. (psutil knows the boot to the second only.)"""
    since_boot_s = start_time(pid)
    assert since_boot_s is not None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Rounds of both in turn, after a start of each that does not count."""
    load = psutil.getloadavg()[0]
    os.environ |= {"XDG_CACHE_HOME": str(work / "cache"), "SLOTWISE_HOME": str(work / "home")}
    os.environ.pop(SWITCH, None)
    store = work / "model_store"
    build(MODEL, store)
    home = os.environ["SLOTWISE_HOME"]
    if train("torchserve") is None:
        raise RuntimeError("Java's cache could not be made here")
    os.environ["SLOTWISE_HOME"] = home
    rounds: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for turn in range(-1, options.rounds):
        for system in list(SYSTEMS)[:: 1 if turn % 2 else -1]:
            measured = _start(work, system)
            say(f"{f'round {turn + 1}' if turn >= 0 else 'warm-up'}, {system}: {measured}")
            if turn >= 0:
                rounds[system].append(measured)
    rows = [
        {"system": system, **{key: round(median(each[key] for each in measured), 2) for key in measured[0]}, "rounds": measured}
        for system, measured in rounds.items()
    ]
    return {"rows": rows, "ratios": {key: _ratio(rounds, key) for key in PARTS}, "load": load}


def _start(work: Path, system: str) -> dict[str, float]:
    state = Path(os.environ["SLOTWISE_HOME"]) / NAME
    watch = JavaWatch(state)
    command = [sys.executable, *PROGRAMS[system], "serve", MODEL, "--detach", "--name", NAME, "--port", "0"]
    began_s = time.time()
    watch.start()
    environ = {**os.environ, **SYSTEMS[system]}
    done = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    record = ServerRecord.load(state)
    assert record is not None
    body = examples(MODEL)[0]
    try:
        with InferenceClient(record) as client:
            if client.predict(MODEL, body.data).status_code != 200:
                raise RuntimeError("the first answer is none")
        ended_s = time.time()
        pid = next(int(file.stem) for file in (record.state_dir / "workers").glob("*.json"))
        worker_s, memory = started(pid), resident_bytes(pid)
    finally:
        watch.join(UP_S)
        stop(record)
    if not watch.up_s:
        raise RuntimeError("nobody saw Java start")
    log = (record.state_dir / "logs" / "model_log.log").read_text("utf-8", "replace")
    java, worker = watch.up_s - watch.started_s, _logged(log, "worker started") - worker_s
    model, whole = _logged(log, "slotwise worker: ") - _logged(log, "worker started"), ended_s - began_s
    seconds = {"java": java, "java_cpu": watch.cpu_s, "worker": worker, "model": model}
    seconds |= {"rest": whole - java - worker - model, "all": whole, "memory_mib": memory / 2**20}
    return {key: round(value, 3) for key, value in seconds.items()}


def _logged(log: str, what: str) -> float:
    """When the worker last logged that."""
    times = re.findall(LOGGED + what, log, re.MULTILINE)
    return datetime.strptime(times[-1], "%Y-%m-%dT%H:%M:%S,%f").astimezone().timestamp()


def _ratio(rounds: dict[str, list[dict[str, float]]], key: str) -> Any:
    before, now = ([each[key] for each in rounds[system]] for system in SYSTEMS)
    found = ratio(before, now)
    return found and found._asdict()
