"""The long run's kept results: what is too old, red or missing fails, and what cannot be counted says so."""

from __future__ import annotations

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
