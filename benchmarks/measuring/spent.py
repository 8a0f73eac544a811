"""Processor time that processes have spent."""

from __future__ import annotations

import resource

import psutil

from slotwise.server.lifecycle import ServerRecord


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
