"""Round after round of what can go wrong, under 32 clients and with every core busy: who lost what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.frontend import process as gateway_process
from slotwise.server.lifecycle import ServerRecord, running
from tests.campaign.killers_place import WORKERS, KillersPlace, archive_in
from tests.campaign.own_server import own_home
from tests.server.storm import Storm

CLIENTS = 32
BETWEEN = 100  # right answers between two disasters
PATIENCE_S = 300.0


class Place(KillersPlace):
    """Where they happen."""

    PATIENCE_S = PATIENCE_S


def disasters(rounds: int, work: Path) -> dict[str, Any]:
    """Each round: a body that exits or segfaults its worker, a SIGKILL, a scale, a swap of server or profile."""
    with own_home(work):
        Place.serving("torchserve", archive_in(work))
        options = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0", "--max-queued", "64"]
        front = gateway_process.start_detached("default", options)
        try:
            while not front.status()["ready"]:
                time.sleep(0.2)
            storm = Storm(front.url, [], clients=CLIENTS)
            with busy_cores(), storm.in_background():
                storm.wait_for(BETWEEN, PATIENCE_S)
                table = [_round(number, storm, work) for number in range(1, rounds + 1)]
        finally:
            gateway_process.stop()
    deaths = _deaths(work)
    return {
        "rounds": table,
        "clients": CLIENTS,
        "answered": storm.right,
        "lost": storm.lost,
        "killers": rounds,
        "most_deaths": max(deaths.values(), default=0),
        "deaths": sum(deaths.values()),
    }


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process a core that does nothing but count."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def _round(number: int, storm: Storm, work: Path) -> dict[str, Any]:
    started, lost = time.monotonic(), len(storm.lost)
    body = f"{('exit', 'segfault')[number % 2]} {number}"
    statuses = storm.try_killer(body.encode(), 3)
    storm.wait_for(BETWEEN, PATIENCE_S)
    with ManagementClient(_server()) as client:
        victim = next(worker.pid for worker in client.describe("killers").workers if worker.ready)
        os.kill(victim, signal.SIGKILL)
        storm.wait_for(BETWEEN, PATIENCE_S)
        client.wait_ready("killers", WORKERS)
        for workers in (WORKERS + 1, WORKERS):
            client.scale("killers", workers)
            client.wait_ready("killers", workers)
        storm.wait_for(BETWEEN, PATIENCE_S)
    kind = ("torchserve", "mms")[number % 2]
    command = [sys.executable, "-m", "slotwise.cli", "apply", "cpu", "--server", kind, "--yes", *_overrides()]
    swapped = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if swapped.returncode:
        raise RuntimeError(f"round {number}: the swap failed: {swapped.stderr.strip()}")
    storm.wait_for(BETWEEN, PATIENCE_S)
    row = {
        "killer": body,
        "its_statuses": statuses,
        "workers_it_ended": _deaths(work)[body],
        "server_then": kind,
        "answered_so_far": storm.right,
        "lost": len(storm.lost) - lost,
        "seconds": round(time.monotonic() - started, 1),
        "load": psutil.getloadavg()[0],
    }
    say(f"round {number}: {row}")
    return row


def _overrides() -> list[str]:
    """The settings of the model, as `slotwise apply` takes them: it registers what was registered with the profile's."""
    wanted = {"batch_size": 8, "max_batch_delay_ms": 10, "initial_workers": WORKERS}
    return [part for key, value in wanted.items() for part in ("--set", f"{key}={value}")]


def _server() -> ServerRecord:
    record = running()
    if record is None:
        raise RuntimeError("no server runs")
    return record


def _deaths(work: Path) -> Counter[str]:
    """How many workers each body ended: the handler writes the body and the worker's pid before it does."""
    lines = {line for file in work.glob("default*/deaths.txt") for line in file.read_text("utf-8").splitlines()}
    return Counter(line.rpartition(" ")[0] for line in lines)
