"""What a worker says of itself: only what is known."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwise.worker.environment.settings import Settings
from slotwise.worker.reports import batch_report, telemetry
from slotwise.worker.reports.batch_report import watched
from tests.worker import toy


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


def reported(handler: toy.Toy, numbers: list[float], **options: Any) -> list[Any]:
    engine = SimpleNamespace(name="toys", precision="fp32")
    local = SimpleNamespace(run=handler.pipeline.run, pipeline=handler.pipeline, handler=SimpleNamespace(engine=engine))
    answered, sent = watched(cast(Any, local), [toy.request(i, [x]) for i, x in enumerate(numbers)], **options)
    assert len(answered.answers) == len(numbers)
    assert handler.isolation.calls is None, "nobody asks any more"
    return [json.loads(frame.text) for frame in sent]


def test_a_report_has_each_call_of_the_model_with_its_slots_and_its_error_and_nothing_that_was_sent() -> None:
    handler = toy.started()
    (report,) = reported(handler, [1.0, toy.POISON, 3.0])
    assert (report["engine"], report["precision"], report["cuts"]) == ("toys", "fp32", 2)
    calls = [(rows, size, slots, error) for _, _, rows, size, slots, error in report["calls"]]
    assert calls == [(3, 3, [0, 1, 2], "ValueError"), (2, 2, [0, 1], "ValueError"), (1, 1, [0], ""), (1, 1, [1], "ValueError"),
                     (1, 1, [2], "")]  # fmt: skip
    assert report["rows"] == sum(size for _, size, _, _ in calls)
    assert "secret" not in json.dumps(report)


def test_only_a_batch_in_which_a_call_failed_is_reported_where_that_is_asked() -> None:
    handler = toy.started()
    assert reported(handler, [1.0, 2.0], always=False) == []
    assert [one["cuts"] for one in reported(handler, [toy.POISON, 2.0], always=False)] == [1]
    assert reported(handler, [toy.POISON], always=False)[0]["cuts"] == 0, "one that is alone is not cut"


def test_a_report_that_would_be_too_long_leaves_its_calls_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_report, "LONGEST", 300)
    (report,) = reported(toy.started(), [1.0, toy.POISON, 3.0])
    assert (report["calls"], report["cuts"]) == ([], 2)
