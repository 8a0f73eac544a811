"""scripts/compare.py: its numbers from readings made by hand, its figure, and the raw loop on a real archive."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build, extract

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def comparison() -> Iterator[Any]:
    """scripts/comparison, as scripts/compare.py imports it."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from comparison import results, systems

        yield type("Comparison", (), {"results": results, "systems": systems})
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def readings(comparison: Any) -> dict[Any, Any]:
    def rounds(*rps: float) -> list[Any]:
        return [comparison.systems.Reading(value, 1000 / value, 2000 / value) for value in rps]

    cell = {
        "stock": rounds(20, 10, 40),
        "slotwise-openvino-fp32": rounds(50, 30, 90),
        "slotwise-openvino-int8": rounds(80, 60, 70),
    }
    raw = {"raw-openvino-int8": [comparison.systems.Reading(value) for value in (100, 80, 70)]}
    return {("720", 8): {**cell, **raw, "litserve": rounds(25, 20, 35)}, ("12M", 8): cell}


def test_ratios_are_of_the_same_round_and_of_our_fastest(comparison: Any) -> None:
    table = comparison.results.rows(readings(comparison))
    ratios = comparison.results.ratios(table)
    assert ratios["720"]["8"] == {"vs_stock": 4.0, "vs_best_peer": 3.0, "vs_raw": 0.8}  # medians of 4, 6, 1.75; ...
    assert ratios["12M"]["8"] == {"vs_stock": 4.0, "vs_best_peer": None, "vs_raw": None}


def test_rows_have_the_documented_keys(comparison: Any) -> None:
    row = comparison.results.rows(readings(comparison))[0]
    assert list(row) == ["workload", "concurrency", "system", "rps", "p50_ms", "p99_ms", "rounds"]
    assert (row["workload"], row["concurrency"], row["system"], row["rps"], row["rounds"]) == (
        "720",
        8,
        "stock",
        20,
        [20, 10, 40],
    )
    assert {"cpu", "cores", "bf16", "packages"} <= set(comparison.results.machine())


def test_the_figure_is_drawn(comparison: Any, tmp_path: Path) -> None:
    table = comparison.results.rows(readings(comparison))
    comparison.results.draw(table, tmp_path / "figure.svg", "a title")
    assert "a title" in (tmp_path / "figure.svg").read_text("utf-8")


def test_the_raw_loop_counts_pictures(comparison: Any, tmp_path: Path) -> None:
    model_dir = extract(build("digits", tmp_path), tmp_path / "model", trusted=True)
    settings = {"engine": "onnxruntime", "precision": "fp32", "threads": 1, "decode_threads": 2, "batch_size": 4}
    raw = comparison.systems.Raw("raw-onnxruntime-fp32", model_dir, settings, 1)
    try:
        raw.start()
        assert raw.load("wrk", ROOT / "models" / "digits" / "examples" / "7.png", 8, 0.2).rps > 0
    finally:
        raw.stop()


def test_help_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "compare.py"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("--quick", "--json", "--peers", "--figure"))


def test_what_is_kept_in_docs_is_what_the_page_says() -> None:
    kept = ROOT / "docs" / "figures" / "vision.json"
    result = json.loads(kept.read_text("utf-8"))
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert result["poison"]["slotwise"]["innocent_lost"] == 0
    assert result["poison"]["stock"]["innocent_lost"] > 0
    for row in result["rows"]:
        assert f"{row['rps']:.1f}" in page, row
