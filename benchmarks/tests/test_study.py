"""The batching study: a stand-in has the published shape, and the figure is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measuring import study
from benchmarks.measuring.servers import server
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import RequestBody
from slotwise.bench.offline import LinearTime
from tests.support.sleeper import sleeper

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


@pytest.mark.long
@pytest.mark.server
def test_the_study_on_a_stand_in_has_the_published_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))  # which the part sets
    slower = LinearTime(40.0, 40.0)  # so that a busy machine sends and answers as many as it sleeps through
    studied = study.Studied("a stand-in", inspect(sleeper(tmp_path / "store", slower)), [RequestBody(b"x")])
    with server(tmp_path, job_queue_size=str(study.QUEUE)) as record:
        curves = study.curves(record, studied, rounds=3, seconds=2.0, clients=(10, 100), delays=(0, 100))
    few, many = ({size: row[i] for size, row in curves.by_clients.items()} for i in (0, 1))
    assert few[1] > few[8] > few[16]
    assert min(many[8], many[16]) > many[1]
    assert all(later <= earlier * 1.1 for earlier, later in zip(curves.by_delay, curves.by_delay[1:], strict=False))


def test_the_figure_is_drawn_from_what_was_measured(tmp_path: Path) -> None:
    study.draw(json.loads((FIGURES / "study.json").read_text("utf-8")), tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size
