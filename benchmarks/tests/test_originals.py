"""The tables beside the originals: our gain for each of theirs, and rows that nobody has measured yet."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring.on_triton import BEFORE, CLIENTS, DELAYS_US, INSTANCES, TUNED, in_grid
from benchmarks.measuring.real_size import within
from benchmarks.pages.originals import NOT_MEASURED, TABLES
from slotwise.bench.load import LoadResult, RequestSample, summary
from slotwise.bench.load_plan import LoadPlan
from slotwise.errors import SlotwiseError
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting


def cells(name: str, figures: Mapping[str, Any]) -> list[list[str]]:
    """The table's lines without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLES[name](figures).splitlines()[2:]]


def row(workload: str, clients: int, system: str, *rounds: float) -> dict[str, Any]:
    """A row as rounds give it."""
    numbers = {"rps": rounds[0], "p50_ms": 5.0, "p99_ms": 9.0, "rounds": list(rounds)}
    return {"workload": workload, "concurrency": clients, "system": system, **numbers}


def test_ants_and_bees_have_a_ratio_of_ratios_where_both_were_measured() -> None:
    rows = [row("720", 50, "slotwise-ei-64x1", 20.0, 20.0), row("720", 50, "slotwise-ei-32x2", 40.0, 40.0)]
    lines = {(line[0], line[1]): line[2:] for line in cells("ants.published", {"ants": {"rows": rows}})}
    assert lines["64", "1"] == ["48.49", "973", "1955", "1.00", "20.0", "5.0", "9.0", "1 (1 to 1)", "1.00"]
    assert lines["32", "2"][3:] == ["1.58", "40.0", "5.0", "9.0", "2 (2 to 2)", "1.26"]
    assert lines["32", "3"] == ["", "", "", "", NOT_MEASURED, *[""] * 4]


def test_batches_of_resnet152_stand_beside_the_published_ones() -> None:
    systems = {"stock": 6.0, "slotwise-openvino-fp32": 10.0}
    rows = [row("720", 10, f"{name}, batch {size}", rps) for name, rps in systems.items() for size in (1, 8, 16)]
    first, _ = cells("resnet152.gains", {"resnet152": {"rows": rows}})
    assert first == ["10", "8", "0.50", "1 (1 to 1)", "2.00", "1 (1 to 1)", "2.00"]


def test_mnist_on_triton_has_ratios_where_the_ends_were_published() -> None:
    rows = [row("mnist", clients, name, 100.0) for clients in CLIENTS for name in (BEFORE, TUNED)]
    grid = [row(str(one), clients, str(us), 100.0 * clients) for one in INSTANCES for clients in CLIENTS for us in DELAYS_US]
    figures = {"mnist_triton": {"rows": rows, "grid": grid}}
    lines = cells("mnist_triton.clients", figures)
    assert lines[0] == ["1", "709", "656", "0.93", "100", "100", "1 (1 to 1)", "1.08"]
    assert [line[1:4] for line in lines[1:3]] == [["", "", ""]] * 2
    assert cells("mnist_triton.grid", figures)[0] == ["24", *["100 / 800"] * len(DELAYS_US)]
    figures["mnist_triton"]["grid"] = grid[len(DELAYS_US) * len(CLIENTS) :]  # 24 instances did not start
    assert cells("mnist_triton.grid", figures)[0] == ["24", *[""] * len(DELAYS_US)]


def test_every_point_of_tritons_grid_is_kept_and_one_that_does_not_start_is_named() -> None:
    class Bench(LiveBench):
        def __init__(self) -> None:
            pass

        def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
            if setting.workers == 24:
                raise SlotwiseError("not ready", "")
            return summary([RequestSample("200", False, 0.1, 0.1)], LoadPlan(clients, requests=1, warm_up_s=0.0))

    grid, left_out = in_grid(Bench(), Namespace(rounds=2, seconds=0.1))
    assert {cell: list(systems) for cell, systems in grid.items()} == {
        (str(instances), clients): [str(us) for us in DELAYS_US] for instances in INSTANCES[1:] for clients in CLIENTS
    }
    assert list(left_out) == [f"24 instances, {us} us" for us in DELAYS_US]


def test_captions_at_their_size_are_a_table_and_a_picture_once_they_are_measured() -> None:
    batches = [
        {"n": n, "batch_ms": 100.0 * n, "decode_ms": 1.0, "model_ms": 98.0, "encode_ms": 1.0, "item_ms": 100.0} for n in (1, 64)
    ]
    rows = [row("captions", 8, "one process", 4.0), row("captions", 8, "two processes", 3.0)]
    times = [{"system": "one process", "clients": 8, "within_ms": {"50": 10.0, "100": 20.0}}]
    figures = {"captions_large": {"batches": batches, "rows": rows, "times": times}}
    assert cells("captions_large.parts", figures)[-1] == ["ours, CPU", "64", "1", "98", "1", "6400", "1.00", "0.25"]
    assert cells("captions_large.processes", figures) == [["8", "4", "3", "less than 0.8", "0.75 (0.75 to 0.75)", "0.94"]]
    assert TABLES["captions_large.times"](figures).endswith("(figures/captions_large.svg)")


def test_sorted_times_are_of_all_rounds() -> None:
    plan = LoadPlan(clients=1, requests=2, warm_up_s=0.0)
    rounds = [summary([RequestSample("200", False, t, t) for t in times], plan) for times in ((0.1, 0.3), (0.2, 0.4))]
    assert within(rounds)["50"] == 200
    assert within(rounds)["100"] == 400


def test_translation_says_which_cases_nobody_measured() -> None:
    case = {"requests": 100, "answered": 100, "even": True}
    rows = [{**case, "records": 1, "rate": 2, "mean_ms": 500.0}, {**case, "records": 16, "rate": 2, "mean_ms": 1000.0}]
    lines = cells("translation.gains", {"translation": {"rows": rows}})
    assert lines[1] == ["16", "2", "100%", "0.62", "1.51", "even", "100%", "1.00", "2.00", "1.32"]
    assert lines[2][5] == NOT_MEASURED
    engine = {"engine": "transformers", "precision": "fp32", "ready_s": 9.5, "ready_mib": 2000, "after_mib": 2100}
    engine["rows"] = [row("records", 1, str(n), 2.0) for n in (1, 2, 4, 8, 16)]
    (line,) = cells("translation_large.rows", {"translation_large": {"engines": [engine]}})
    assert line == ["transformers fp32", "9.5", "2000", "2100", "1", *["2"] * 5]


@pytest.mark.parametrize("name", ["ants", "resnet152", "captions", "translation"])
def test_what_was_kept_still_makes_a_table(name: str) -> None:
    path = Path(__file__).resolve().parents[2] / "docs" / "figures" / f"{name}.json"
    figures = {name: json.loads(path.read_text("utf-8"))}
    assert all(render(figures) for marker, render in TABLES.items() if marker.startswith(f"{name}."))


def test_the_sweep_of_resnet152_has_both_numbers_of_workers() -> None:
    curves = {"by_clients": {"1": [9.0, 9.0, 9.0]}, "by_delay": [8.0, 4.0]}
    study = {"clients": [10, 100, 1000], "delays": [0, 1], "curves": {"1": curves, "8": curves}}
    lines = cells("study152.by_clients", {"study152": study})
    assert lines[0] == ["published, 8 workers", "1", "190", "190", "190"]
    assert [line[0] for line in lines[-2:]] == ["ours, 1 worker", "ours, 8 workers"]
    assert cells("study152.by_delay", {"study152": study})[-1] == ["ours, 8 workers", "8 (1.00)", "4 (0.50)"]
