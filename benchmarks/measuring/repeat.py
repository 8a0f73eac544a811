"""Run the tests that once lost a request again and again, with every core busy beside them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from measuring.about import ROOT
from slotwise.console import say

TESTS = [
    "tests/server/test_gateway.py::test_swaps_under_load_lose_nothing",
    "tests/server/test_gateway.py::test_a_worker_killed_under_load_loses_nothing",
    "tests/server/test_serve.py::test_a_signal_in_the_foreground_ends_everything",
]


def repeat(rounds: int) -> dict[str, Any]:
    """Every round's exit code and seconds; a round that failed is followed by the others."""
    table = []
    with busy_cores():
        for i in range(1, rounds + 1):
            started = time.monotonic()
            tests = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, capture_output=True, text=True)
            last = (tests.stdout.strip().splitlines() or [""])[-1]
            table.append({"exit_code": tests.returncode, "seconds": round(time.monotonic() - started, 1), "summary": last})
            say(f"round {i} of {rounds}: {last}")
            if tests.returncode:
                say(tests.stdout[-20_000:])
    return {"tests": TESTS, "rounds": table, "green": sum(not row["exit_code"] for row in table)}


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process a core that does nothing but count."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
