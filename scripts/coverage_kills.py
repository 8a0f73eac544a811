"""A plugin of pytest, for the coverage's run only: ask a process to end before it is killed, so that it writes what it has run.

Hosts end their workers with SIGKILL, after which coverage.py has nothing of them. On SIGTERM it writes its file (`sigterm`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import psutil

PATIENCE_S = 3.0
kill, killpg = subprocess.Popen.kill, os.killpg


def popen_kill(process: subprocess.Popen[bytes]) -> None:
    """What takes the place of `Popen.kill`."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)
    kill(process)


def os_killpg(group: int, number: int) -> None:
    """What takes the place of `os.killpg`: it waits for all in the group, as each writes a file."""
    if number != signal.SIGKILL:
        killpg(group, number)
        return
    killpg(group, signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and any(_runs_in(group, process) for process in psutil.process_iter()):
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        killpg(group, number)


def _runs_in(group: int, process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False  # it has ended


def pytest_configure() -> None:
    """Called once in each of pytest's processes."""
    subprocess.Popen.kill = popen_kill  # type: ignore[method-assign, assignment]
    os.killpg = os_killpg
