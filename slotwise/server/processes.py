"""Processes of other programs: whether one still runs, which ones belong to a server, and how they are ended.

A pid alone says little, because it may have been given to somebody else. `start_time` tells whether a process that was
recorded is still the same. A server's other processes carry a mark in their environment, also when their parent is gone.
Some write over it (Ray's agents have their title there): they are known as long as their parent is.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

MARK = "SLOTWISE_RUN"


def start_time(pid: int) -> float | None:
    """When a process started, in seconds; None where there is no such process or it is a zombie.

    Linux counts from the boot, so that setting the clock changes nothing; other systems count from 1970.
    """
    try:
        if sys.platform != "linux":
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()  # the name may hold blanks
    except (psutil.Error, OSError):
        return None
    return None if state in ("Z", "X") else int(numbers[18]) / os.sysconf("SC_CLK_TCK")


def carries(pid: int, run_id: str) -> bool:
    """Whether the process `pid` is alive and carries the mark of that run."""
    try:
        process = psutil.Process(pid)
        return bool(process.environ().get(MARK) == run_id and _runs(process))
    except (psutil.Error, OSError):
        return False


def processes_of(run_id: str) -> list[psutil.Process]:
    """The live processes of a run, with children of theirs that carry no mark at all.

    Zombies and other people's processes are not among them.
    """
    running = [process for process in psutil.process_iter(["ppid", "status"]) if process.info["status"] != psutil.STATUS_ZOMBIE]
    found = {process.pid: process for process in running if carries(process.pid, run_id)}
    while more := {
        process.pid: process
        for process in running
        if process.pid not in found and process.info["ppid"] in found and _is_unmarked(process)
    }:
        found |= more
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_unmarked(process: psutil.Process) -> bool:
    try:
        return MARK not in process.environ()
    except (psutil.Error, OSError):
        return False


def end(run_id: str, patience_s: float, grace_s: float = 5.0) -> None:
    """Wait up to `patience_s` until all processes of a run have ended; terminate the rest and, after `grace_s`, kill them."""
    deadline = time.monotonic() + patience_s
    known = set(processes_of(run_id))
    left = known
    while left and time.monotonic() < deadline:
        time.sleep(0.05)  # all processes of a machine are looked through only when those that are known have ended
        left = set(filter(_runs, left)) or set(processes_of(run_id))
        known |= left
    for signal in ("terminate", "kill", "kill"):
        known |= set(processes_of(run_id))
        left = set(filter(_runs, known))  # also who has lost the parent that it was known by
        for process in left:
            with contextlib.suppress(psutil.Error):
                getattr(process, signal)()
        if left:
            psutil.wait_procs(left, timeout=grace_s)


def started_at(pid: int) -> float:
    """When a process started, in Unix time; 0 where there is no such process."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def worker_report(state: Path, pid: int) -> dict[str, Any]:
    """What a worker wrote of itself below that folder (slotwise.worker.reports.telemetry); empty where it wrote nothing."""
    try:
        report: dict[str, Any] = json.loads((state / "workers" / f"{pid}.json").read_text("utf-8"))
        return report
    except (OSError, ValueError):
        return {}
