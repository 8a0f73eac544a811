"""What docs/figures/accuracy.json is measured with: int8 is judged by photos that it has not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmarks.measuring.accuracy import JUDGED, MODEL


def test_no_photo_that_judges_int8_calibrates_it() -> None:
    calibrating = {file.stem for file in (MODEL / "calibration").iterdir()}
    assert calibrating
    assert len(JUDGED) == 5
    assert not {Path(photo).stem for photo in JUDGED} & calibrating
