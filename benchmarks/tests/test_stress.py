"""The slow translation model of `stress` takes the seconds that the original took, and counts as it says."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.measuring import stress
from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.http_connection import Target
from slotwise.files import project
from tests.standin import standin
from tests.worker.serving import Served


def test_the_slow_model_takes_the_originals_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    slow = build(stress.folder(inspect(build("translation", store)), tmp_path), store)
    monkeypatch.syspath_prepend(str(project.handler_file("translator").parent))  # a server has the archive's folder there
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    served = Served.of(slow, {})
    life = next(body for body in examples(str(slow)) if body.name == "life.json")
    for records, seconds in ((1, 0.41), (16, 0.62)):
        slept.clear()
        (answer,) = served.ask([with_records(life, records).data])
        assert len(answer.value["result"]) == records
        assert slept == pytest.approx([seconds])
    spoiled = json.loads(life.data)
    spoiled["payload"]["records"].append({"id": "2"})
    (answer,) = served.ask([json.dumps(spoiled).encode()])
    assert answer.code == 422, "a load sees statuses alone"
    shutil.rmtree(served.model_dir.parent)


def test_what_was_refused_is_not_lost() -> None:
    life = RequestBody(json.dumps({"payload": {"records": [{"id": "1", "text": "a"}]}}).encode(), "application/json")
    statuses = itertools.chain([429, 504, 500], itertools.repeat(200))
    with standin(lambda body, headers: (next(statuses), {"x-batch-size": "2"}, b"{}")) as url:
        row = stress.answers_of(stress.Case(records=4, rate=500, requests=10), Target(url, {}), life)
    assert (row["records"], row["answered"], row["refused"], row["lost"]) == (4, 7, {"429": 1, "504": 1}, {"500": 1})
    assert row["mean_batch"] == 2
