"""What `check` knows of an archive's rows, and how near two answers have to be because of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.check.rows import LEAST, known_of_rows, tolerance_of
from slotwise.worker.separability.agree import TOLERANCE, agree
from slotwise.worker.separability.bits import Deviation
from slotwise.worker.separability.verdict import Verdict

HANDLER = """
import numpy as np
from slotwise.worker import BatchHandler

class Mean(BatchHandler):
    def load(self, model_dir, settings):
        return lambda x: x - x.mean(0)

    def decode(self, body, headers):
        return [np.frombuffer(body, np.float32)]

handle = Mean.entry_point()
"""


@pytest.mark.parametrize(
    ("verdict", "tolerance"),
    [
        (Verdict(True), LEAST),
        (Verdict(True, between_shapes=Deviation(1e-4, 1e-4)), 16e-4),
        (Verdict(True, between_shapes=Deviation(3.0, 1e-4)), 16e-4),
        (Verdict(True, between_shapes=Deviation(0.3, 0.3)), TOLERANCE),
        (Verdict(True, between_shapes=Deviation(math.inf, math.inf)), TOLERANCE),
        (Verdict(None, "there is no example"), TOLERANCE),
        (Verdict(False, "mixes rows", 1, between_shapes=Deviation(0.3, 0.3)), LEAST),
    ],
)
def test_two_answers_are_as_near_as_the_shapes_that_were_measured(verdict: Verdict, tolerance: float) -> None:
    assert tolerance_of(verdict) == pytest.approx(tolerance)


def test_agreement_is_within_the_given_tolerance() -> None:
    one = {"label": "a", "probabilities": {"a": 0.6, "b": 0.4}}
    other = {"label": "a", "probabilities": {"a": 0.601, "b": 0.399}}
    assert agree(one, other)
    assert not agree(one, other, 1e-4)
    assert agree([1.0, {"x": 2.0}], [1.0005, {"x": 2.0}], 1e-3)


def test_a_network_that_mixes_rows_keeps_the_promise_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "mean"
    folder.mkdir()
    (folder / "mean.py").write_text(HANDLER)
    (folder / "model.toml").write_text('name = "mean"\nhandler = "mean.py"\n[input]\nshape = [4]\n')
    info = inspect(build(folder, tmp_path / "store"))
    rows = known_of_rows(info, tmp_path, 4, None)
    assert (rows.holds, rows.tolerance) == (True, LEAST)
    assert rows.why == "on function auto cpu: rows run one by one: mixes rows: a batch of 2, loud mates"
