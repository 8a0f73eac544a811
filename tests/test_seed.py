"""One variable draws the same again, in another process and whichever tests ran before; another seed draws something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRAWN = """
import random
from hypothesis import given, settings, strategies

def test_before():
    random.random()

def test_plain():
    print("drawn", random.random())

@settings(max_examples=20)
@given(strategies.integers())
def test_given(number):
    print("drawn", number)
"""


def drawn(folder: Path, seed: str, *options: str) -> list[str]:
    """What the tests drew; the run said the seed."""
    environ = {**os.environ, "SLOTWISE_SEED": seed, "PYTHONPATH": str(ROOT)}
    others = ["-p", "no:schemathesis", "-p", "no:xdist"]  # they take seconds to import
    command = [sys.executable, "-m", "pytest", "-q", "-s", *others, "-p", "tests.support.seed", *options, "test_drawn.py"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SLOTWISE_SEED={seed}" in done.stdout
    return [line.partition("drawn ")[2] for line in done.stdout.splitlines() if "drawn " in line]


def test_a_seed_draws_the_same_again_and_another_one_something_else(tmp_path: Path) -> None:
    (tmp_path / "test_drawn.py").write_text(DRAWN, "utf-8")
    first = drawn(tmp_path, "20260101")
    assert len(first) == 21
    assert drawn(tmp_path, "20260101", "-k", "not before") == first
    other = drawn(tmp_path, "20260102")
    assert other[0] != first[0]
    assert set(other[1:]) != set(first[1:])
