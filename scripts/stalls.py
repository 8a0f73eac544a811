"""Run tests while their processes are stopped now and then for a moment, all of them or some.

    python scripts/stalls.py tests/backends -m "not slow"      what pytest takes

A machine that does other work does that to them, too. A test that fails here and passes elsewhere depends on time, and so
may what it tests. Pauses come by chance, and cannot be repeated.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import psutil

BETWEEN_S, STOPPED_S = (0.5, 3.0), (0.1, 0.3, 0.6, 1.2)
SHARES = (1.0, 1.0, 0.5, 0.2)  # of the processes that are stopped
LEFT_ALONE = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE}  # by a test, or dead


def main() -> int:
    """Run pytest; returns its exit code."""
    tests = subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-n", "2", *sys.argv[1:]])
    over = threading.Event()
    stalling = threading.Thread(target=stall, args=(tests.pid, over))
    stalling.start()
    try:
        return tests.wait()
    finally:
        over.set()
        stalling.join()


def stall(root: int, over: threading.Event) -> None:
    """Stop some of what this process has started, again and again, until it is over."""
    while not over.wait(random.uniform(*BETWEEN_S)):
        share = random.choice(SHARES)
        stopped = [pid for pid in _running(root) if random.random() < share]
        for pid in stopped:
            _tell(pid, signal.SIGSTOP)
        over.wait(random.choice(STOPPED_S))
        for pid in stopped:
            _tell(pid, signal.SIGCONT)


def _running(root: int) -> list[int]:
    running = []
    with suppress(psutil.Error):
        for process in psutil.Process(root).children(recursive=True):
            with suppress(psutil.Error):
                if process.status() not in LEFT_ALONE:
                    running.append(process.pid)
    return running


def _tell(pid: int, what: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, what)


if __name__ == "__main__":
    sys.exit(main())
