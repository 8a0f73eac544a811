"""What a worker says of itself: only what is known."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwise.worker.environment.settings import Settings
from slotwise.worker.reports import telemetry


@pytest.mark.parametrize(
    ("engine", "precision"),
    [(lambda rows: rows, "not said"), (SimpleNamespace(precision="bf16"), "bf16")],
    ids=["an author's function", "an engine"],
)
def test_the_precision_is_the_engines_and_not_the_one_that_was_asked_for(
    engine: Any, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_STATE", str(tmp_path))
    context = SimpleNamespace(model_name="mine", model_version="1.0", model_dir=tmp_path)
    verdict = SimpleNamespace(sentence=lambda: "")
    pipeline = SimpleNamespace(settings=Settings(precision="int8"), handler=SimpleNamespace(engine=engine), verdict=verdict)
    telemetry.write(cast(Any, context), cast(Any, pipeline), {})
    (written,) = (tmp_path / "workers").glob("*.json")
    assert json.loads(written.read_text("utf-8"))["precision"] == precision
