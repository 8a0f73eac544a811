"""What writes README and docs from docs/figures/*.json, and measures in turns."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.measuring.about import about, machine
from benchmarks.measuring.about import commit as checked_out
from benchmarks.measuring.rounds import Cell, Reading, in_turn, median_interval, ratio
from benchmarks.pages import stale
from benchmarks.pages.markers import MEND, load, render
from benchmarks.pages.tuning import TABLES

ROOT = Path(__file__).resolve().parents[2]
FIGURES = load(ROOT)
MACHINE = dict.fromkeys(("cpu", "cores", "avx2", "avx512", "amx"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages and their figures, without history."""
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    shutil.copytree(ROOT / "docs" / "figures", tmp_path / "docs" / "figures")
    return tmp_path


@pytest.mark.parametrize("name", sorted({*FIGURES} - {*stale.HISTORY}))
def test_the_code_that_figures_depend_on_is_there(name: str) -> None:
    """Else a change of it would never mark them as older than it."""
    assert stale.CODE[name]
    assert [path for path in stale.CODE[name] if not (ROOT / path).exists()] == []


def test_a_typed_number_is_found_and_mended(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "docs" / "measured-pictures.md"
    right = page.read_text("utf-8")
    found = re.search(r"\| stock \| 56 \| \d+ \|", right)
    assert found
    page.write_text(right.replace(found[0], "| stock | 56 | 99 |"), "utf-8")
    assert render(copy, check=True) == 1
    printed = capsys.readouterr().out
    assert "-| stock | 56 | 99 |" in printed
    assert MEND in printed
    assert "| stock | 56 | 99 |" in page.read_text("utf-8")
    assert render(copy, check=False) == 0
    assert found[0] in page.read_text("utf-8")


def test_without_history_nothing_is_said_of_the_code_and_nothing_differs(copy: Path) -> None:
    assert render(copy, check=False) == 0
    assert not stale.LINE.search((copy / "docs" / "measured-pictures.md").read_text("utf-8"))
    assert render(copy, check=True) == 0


def test_an_unknown_marker_is_an_error(copy: Path) -> None:
    (copy / "docs" / "tune.md").write_text("so <!-- figure: vision.nothing -->1<!-- end -->\n", "utf-8")
    with pytest.raises(KeyError, match="nothing"):
        render(copy, check=True)


def test_figures_that_are_not_there_yet_say_so_and_then_stand_there(copy: Path) -> None:
    figures = copy / "docs" / "figures" / "hosts.json"
    figures.unlink(missing_ok=True)
    page = copy / "docs" / "measured-servers.md"
    others = page.read_text("utf-8").count("not measured yet")
    assert render(copy, check=False) == 0
    assert page.read_text("utf-8").count("not measured yet") == others + 4
    row = {"workload": "mnist, batch 16", "concurrency": 8, "rps": 1234.5, "p99_ms": 9.87, "lost": 0}
    rows = [{**row, "system": "torchserve"}, {**row, "system": "ray", "rps": 99.5, "lost": 2, "p99_ms": None}]
    rows += [{**one, "workload": "resnet18, batch 8"} for one in rows]
    about = {"commit": "1", "date": "2026-11-22", "command": "python -m benchmarks.figures", "machine": MACHINE}
    figures.write_text(json.dumps({**about, "rows": rows}), "utf-8")
    assert render(copy, check=False) == 0
    written = page.read_text("utf-8")
    assert "| mnist | 8 | 1234 | 99.5, 2 lost | 9.87 |  |" in written
    assert "<!-- figure: hosts.resnet18 -->batch 8<!-- end -->" in written
    assert written.count("not measured yet") == others


def test_the_originals_experiments_stand_beside_their_figures(copy: Path) -> None:
    about = {"commit": "1", "date": "2026-11-22", "command": "python -m benchmarks.figures", "machine": MACHINE}
    row = {"workload": "captions", "concurrency": 64, "p99_ms": 90.5, "mean_batch": 1.0, "lost": 0}
    captions = [
        {**row, "system": size, "rps": rps, "rounds": [rps, rps]} for size, rps in (("batch 1", 40.0), ("batch 64", 500.0))
    ]
    times = {"mean_ms": 15400.0, "min_ms": 900.0, "p50_ms": 17000.0, "p99_ms": 31000.0, "mean_batch": 42.1}
    case = {"records": 16, "rate": 10, "requests": 100, "answered": 90, "refused": {"429": 9}, "lost": {"timeout": 1}, **times}
    figures = {
        "captions": {"rows": captions},
        "translation": {"rows": [case], "limits": {"in_flight_max": 128, "queue_max": 64}},
    }
    for name, found in figures.items():
        (copy / "docs" / "figures" / f"{name}.json").write_text(json.dumps({**about, **found}), "utf-8")
    assert render(copy, check=False) == 0
    assert "| batch 64 | 500 | 500 500 | 1.0 | 90.5 | 12.5 (12.5 to 12.5) | 0 |" in (
        copy / "docs" / "measured-servers.md"
    ).read_text("utf-8")
    assert "captions.batched -->12.5<!--" in (copy / "docs" / "captions.md").read_text("utf-8")
    translation = (copy / "docs" / "translation.md").read_text("utf-8")
    assert "10.4 s on average | 90% | 9% 429 | 1% timeout | 15.40 | 0.90 | 17.00 | 31.00 | 42.1 |" in translation


def test_figures_older_than_their_code_are_marked(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(path: str) -> str:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "code.py").write_text(path, "utf-8")
        git("add", ".")
        git("commit", "-m", path)
        return git("rev-parse", "--short=12", "HEAD")

    git("init", "-q")
    measured = {"commit": commit("models/mnist"), "date": "2026-11-20"}
    commit("docs")
    (tmp_path / "docs" / "code.py").write_text("a figure that was measured before", "utf-8")
    assert checked_out(tmp_path) == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "models/mnist/code.py").write_text("another", "utf-8")
    assert checked_out(tmp_path) == git("rev-parse", "--short=12", "HEAD") + "-dirty"
    git("checkout", "-q", ".")
    assert stale.line("echo", measured, tmp_path) == ""
    commit("slotwise/worker")
    line = stale.line("echo", measured, tmp_path)
    assert line == f"*Measured at {measured['commit'][:7]} (2026-11-20); slotwise/worker changed since.*\n\n"
    assert stale.LINE.sub("", f"table\n\n{line}") == "table\n\n"
    assert stale.line("echo", {**measured, "commit": f"{measured['commit']}-dirty"}, tmp_path) == line
    unknown = stale.line("echo", {**measured, "commit": "0123456"}, tmp_path)
    assert unknown.startswith("*Measured at 0123456 (2026-11-20), of which the history here does not tell")
    assert stale.LINE.sub("", f"table\n\n{unknown}") == "table\n\n"
    (tmp_path / "docs" / "figures").mkdir()
    (tmp_path / "docs" / "figures" / "echo.json").write_text(json.dumps({**measured, "tree": "0123456789ab"}), "utf-8")
    count = "of 1 figures are as old as their code; trees measured: 0123456789ab"
    assert stale.listed(tmp_path) == [f"echo: {line.strip().strip('*')}", f"0 {count}"]


def test_every_round_measures_every_system_and_turns() -> None:
    order: list[str] = []

    def measure(cell: Cell, system: str) -> Reading:
        order.append(system)
        return Reading(len(order), failed=int(system == "b"))

    printed: list[str] = []
    readings = in_turn([("x", 8)], ["a", "b", "c"], measure, 2, say=printed.append, warm_ups=1)
    assert order == ["c", "a", "b", "a", "b", "c", "b", "c", "a"]
    assert [r.rps for r in readings["x", 8]["a"]] == [4, 9]
    assert printed[2:4] == ["warm-up: x, 8 clients, b: 3.0 a second, 1 FAILED", "round 1: x, 8 clients, a: 4.0 a second"]


def test_a_ratio_is_of_the_same_round_and_has_its_spread() -> None:
    assert ratio([10, 30, 90], [10, 10, 10]) == (3.0, 1.0, 9.0)
    assert ratio([10, 30, 90], [10, 0, 10]) is None


def test_the_interval_of_a_median_is_what_tables_of_order_statistics_say() -> None:
    assert median_interval(range(5)) is None
    assert median_interval(range(1, 7)) == (1, 6)
    assert median_interval(range(1, 14)) == (3, 11)
    assert median_interval(range(1, 31)) == (10, 21)


def test_what_is_measured_now_says_where_and_with_what() -> None:
    known = about("a command")
    assert list(known) == ["commit", "tree", "date", "command", "machine"]
    assert all(known.values())
    assert known["command"] == "a command"
    assert {"cpu", "cores", "amx", "avx512", "avx2", "packages"} <= machine().keys()
    assert machine()["packages"]["torch"]


def test_ants_batches_stand_beside_what_was_published() -> None:
    figures = {
        "offline-ants": {"batches": [{"n": 8, "batch_ms": 80.0}, {"n": 12, "batch_ms": 90.0}, {"n": 64, "batch_ms": 640.0}]}
    }
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in TABLES["offline-ants.batches"](figures).splitlines()
    ]
    assert rows[2:] == [
        ["8", "140", "17.5", "80", "10.0"],
        ["12", "", "", "90", "7.5"],
        ["64", "1040", "16.2", "640", "10.0"],
    ]
