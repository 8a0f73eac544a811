"""Every process of one server, found by the mark in its environment, and their orderly end."""

from __future__ import annotations

import contextlib
import time

import psutil

MARK = "SLOTWISE_RUN"


def carries(pid: int, run_id: str) -> bool:
    """Whether the process `pid` is alive and of that run."""
    try:
        process = psutil.Process(pid)
        return bool(process.environ().get(MARK) == run_id and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):
        return False


def processes_of(run_id: str) -> list[psutil.Process]:
    """The live processes that carry the mark; zombies and other people's processes do not count."""
    return [process for process in psutil.process_iter() if carries(process.pid, run_id)]


def end(run_id: str, patience_s: float, grace_s: float = 5.0) -> None:
    """Wait up to `patience_s` for them to go by themselves, then terminate and, after `grace_s`, kill what is left."""
    deadline = time.monotonic() + patience_s
    while processes_of(run_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    for signal in ("terminate", "kill", "kill"):
        left = processes_of(run_id)
        for process in left:
            with contextlib.suppress(psutil.Error):
                getattr(process, signal)()
        if left:
            psutil.wait_procs(left, timeout=grace_s)


def memory_bytes(pid: int) -> int:
    """The process's resident memory; 0 where there is no such process."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
