"""benchmarks/compare.py: its numbers from readings made by hand, its figure, the raw loop and a peer on a real archive."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.comparison.peers import Peer
from benchmarks.comparison.programs import PROGRAMS, Program, plain
from benchmarks.comparison.results import draw, ratios
from benchmarks.comparison.systems import Raw
from benchmarks.measuring.about import machine
from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.rounds import Reading, rows
from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.bench.bodies import examples

ROOT = Path(__file__).resolve().parents[2]


def readings() -> dict[Any, Any]:
    def rounds(*rps: float) -> list[Any]:
        return [Reading(value, 1000 / value, 2000 / value) for value in rps]

    cell = {
        "stock": rounds(20, 10, 40),
        "slotwise-openvino-fp32": rounds(50, 30, 90),
        "slotwise-openvino-int8": rounds(80, 60, 70),
    }
    raw = {"raw-openvino-int8": [Reading(value) for value in (100, 80, 70)]}
    return {("720", 8): {**cell, **raw, "litserve": rounds(25, 20, 35)}, ("12M", 8): cell}


def test_ratios_are_of_the_same_round_and_of_our_fastest() -> None:
    table = rows(readings())
    found = ratios(table)
    assert found["720"]["8"] == {"vs_stock": 4.0, "vs_best_peer": 3.0, "vs_raw": 0.8}  # medians of 4, 6, 1.75; ...
    assert found["12M"]["8"] == {"vs_stock": 4.0, "vs_best_peer": None, "vs_raw": None}


def test_rounds_without_answers_are_not_the_quickest() -> None:
    dead = Reading(0.0, None, None, failed=9)
    row = rows({("m", 8): {"dead in two": [Reading(20, 80.0, 90.0), dead, dead]}})[0]
    assert (row["rps"], row["p50_ms"], row["p99_ms"], row["lost"]) == (0.0, 80.0, 90.0, 18)


def test_rows_have_the_documented_keys() -> None:
    row = rows(readings())[0]
    assert list(row) == ["workload", "concurrency", "system", "rps", "p50_ms", "p99_ms", "rounds"]
    assert (row["workload"], row["concurrency"], row["system"], row["rps"], row["rounds"]) == (
        "720",
        8,
        "stock",
        20,
        [20, 10, 40],
    )
    assert {"cpu", "cores", "bf16", "packages"} <= set(machine())


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    table = rows(readings())
    draw(table, tmp_path / "figure.svg", "a title")
    assert "a title" in (tmp_path / "figure.svg").read_text("utf-8")


def test_the_raw_loop_counts_pictures(tmp_path: Path) -> None:
    model_dir = extract(build("digits", tmp_path), tmp_path / "model", trusted=True)
    settings = {"engine": "onnxruntime", "precision": "fp32", "threads": 1, "decode_threads": 2, "batch_size": 4}
    raw = Raw("raw-onnxruntime-fp32", model_dir, settings, 1)
    try:
        raw.start()
        assert raw.load(ROOT / "models" / "digits" / "examples" / "7.png", 0.2).rps > 0
    finally:
        raw.stop()


def test_a_peer_answers_and_is_poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI's program with MNIST, which our own environment can run."""
    monkeypatch.setitem(PROGRAMS, "fastapi", Program(wrap=plain, batches=False, ours="fastapi"))
    archive = build("mnist", tmp_path)
    settings = {"form": "natural", "kind": "tensor", "model_dir": str(extract(archive, tmp_path / "model", trusted=True))}
    settings |= {"processes": 1, "threads": 1, "batch_size": 4, "delay_ms": 10}
    seven = next(body.data for body in examples(str(archive)) if body.name == "7.f32")
    peer = Peer("fastapi", "fastapi", settings, tmp_path, tmp_path)
    try:
        peer.start()
        peer.wait(seven, "application/octet-stream")
        assert peer.ask(seven, "application/octet-stream").json()["labels"][0] == 7
        counts = peer.poison(seven, "application/octet-stream", requests=16)
        assert (counts["innocent_lost"], counts["statuses"]) == (0, {"500": 2})
    finally:
        peer.stop()
    assert (peer.described()["batch_size"], peer.described()["log_level"]) == (1, "ERROR")


def test_help_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.compare", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("--quick", "--json", "--systems", "--figure", "vision", "resnet152"))


def test_only_the_system_that_is_measured_runs() -> None:
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()']).pid, flush=True); input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    parents = [subprocess.Popen([sys.executable, "-c", script], **pipes) for _ in range(2)]
    children = [int(parent.stdout.readline()) for parent in parents if parent.stdout]
    seen = [psutil.Process(pid) for pid in (parents[0].pid, children[0], parents[1].pid, children[1])]

    def wait_until_stopped(*expected: bool) -> None:
        while [process.status() == psutil.STATUS_STOPPED for process in seen] != [*expected]:
            time.sleep(0.01)

    try:
        with OneAtATime({"first": parents[0].pid, "second": parents[1].pid}) as turns:
            wait_until_stopped(True, True, True, True)
            with turns.running("second"):
                wait_until_stopped(True, True, False, False)
            with turns.running("a loop without a server"):
                wait_until_stopped(True, True, True, True)
        wait_until_stopped(False, False, False, False)
    finally:
        for parent in parents:
            parent.communicate("")
