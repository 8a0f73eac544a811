"""A container's CPU limit counts, however its cgroup says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotwise.worker.environment.cores import available_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("max 100000\n", 8),
        ("1600000 100000\n", 8),
        ("?", 8),
    ],
)
def test_cgroup_v2(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert available_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("300000\n", 3), ("-1\n", 8)])
def test_cgroup_v1(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cores(tmp_path) == cores


def test_no_limit(tmp_path: Path) -> None:
    assert available_cores(tmp_path) == 8
