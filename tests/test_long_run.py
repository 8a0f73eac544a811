"""The long run's kept results: what is too old, red or missing fails, and what cannot be counted says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import long_run

GREEN = {"commit": "0" * 40, "day": "2026-01-31", "result": "green", "last_line": "9 passed"}


@pytest.mark.parametrize(
    ("result", "commits", "fault"),
    [
        (GREEN, 0, ""),
        (GREEN, long_run.MOST_COMMITS, ""),
        (GREEN, long_run.MOST_COMMITS + 1, "too old"),
        (GREEN, None, ""),
        ({**GREEN, "result": "red", "last_line": "1 failed"}, 0, "red (1 failed)"),
        ({**GREEN, "result": "not tried", "last_line": "Python 3.13 is not here"}, 0, ""),
        (None, None, "never ran"),
    ],
)
def test_what_is_wrong_with_a_kept_result(result: dict[str, str] | None, commits: int | None, fault: str) -> None:
    assert long_run.verdict(result, commits)[0] == fault


def test_a_commit_that_is_not_in_the_history_is_named() -> None:
    assert "000000000 is not in this history" in long_run.verdict(GREEN, None)[1]


def test_a_shallow_clone_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_run, "git", lambda *arguments: "true")
    assert long_run.commits_since({"tests": GREEN}, "tests", long_run.KEPT) is None


def test_what_is_due_is_what_the_check_finds_fault_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "long.json"
    kept.write_text(json.dumps({"models": GREEN, "tests": {**GREEN, "result": "red"}}), "utf-8")
    monkeypatch.setattr(long_run, "commits_since", lambda kept, part, file: 3)
    assert [part for part in ("models", "servers", "tests") if long_run.due(part, kept)] == ["servers", "tests"]


def test_the_parts_leave_out_no_folder_of_tests() -> None:
    """Whatever "tests" leaves out has a part of its own."""
    left_out = {word.removeprefix("--ignore=") for word in long_run.PARTS["tests"] if word.startswith("--ignore=")}
    elsewhere = {word for part in ("models", "servers", "thirty", "histories") for word in long_run.PARTS[part]}
    assert left_out <= elsewhere
    assert {word.removeprefix("--ignore=") for word in long_run.PARTS["servers"] if "--ignore" in word} <= elsewhere
