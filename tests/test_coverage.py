"""What the coverage's run adds: which copies of the worker count, and that a process is asked to end before it is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import coverage_copies, coverage_kills

ROOT = Path(__file__).resolve().parents[1]
WAITS = """
import os, signal, sys, time

signal.signal(signal.SIGTERM, {on_term})
print("ready", flush=True)
time.sleep(600)
"""
ENDS = "lambda *_: (print('written', flush=True), os._exit(0))"


def test_an_archives_copy_counts_file_by_file_where_it_is_the_same(tmp_path: Path) -> None:
    copy = tmp_path / "archive" / "slotwise" / "worker"
    shutil.copytree(ROOT / "slotwise" / "worker", copy)
    (copy / "batch.py").write_text("# of an earlier release\n")
    (copy / "moved.py").write_text("")
    found = coverage_copies.copies([str(ROOT), str(tmp_path), str(tmp_path / "archive")])
    expected = {path.relative_to(ROOT) for path in (ROOT / "slotwise" / "worker").rglob("*.py")}
    assert {path.relative_to(tmp_path / "archive") for path in found} == expected - {Path("slotwise/worker/batch.py")}


@pytest.mark.parametrize(("on_term", "written"), [(ENDS, "written\n"), ("signal.SIG_IGN", "")])
def test_who_is_killed_is_asked_before(monkeypatch: pytest.MonkeyPatch, on_term: str, written: str) -> None:
    monkeypatch.setattr(coverage_kills, "PATIENCE_S", 60.0 if written else 0.2)
    for kill in (coverage_kills.popen_kill, lambda child: coverage_kills.os_killpg(child.pid, signal.SIGKILL)):
        command = [sys.executable, "-c", WAITS.format(on_term=on_term)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            kill(child)
            assert child.stdout.read() == written
        assert child.returncode == (0 if written else -signal.SIGKILL)
