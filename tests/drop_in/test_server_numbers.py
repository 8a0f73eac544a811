"""TorchServe's metrics of a server whose workers come and go."""

from __future__ import annotations

import asyncio
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from slotwise.backends.local.model_settings import ModelSettings
from slotwise.drop_in.configuration import Configuration, hostname
from slotwise.drop_in.line_files import LogFiles
from slotwise.drop_in.own_host import CountedVersions, LoggedModel
from slotwise.drop_in.server_numbers import ServerNumbers
from tests.backends.test_served_model import settings
from tests.support.waiting import PATIENCE_S

__all__ = ["settings"]  # the fixture


def test_of_a_worker_that_is_gone_nothing_is_kept(settings: ModelSettings) -> None:
    async def history() -> None:
        nobody: Any = None
        numbers = ServerNumbers(Configuration({"metrics_mode": "prometheus"}), nobody)
        served = LoggedModel(settings, lambda *_: None, numbers)
        took = numbers.numbers["WorkerLoadTime"].values
        served.scale(1)
        for _ in range(3):
            while not took:
                await asyncio.sleep(0.01)
            assert [of[0] for of in took] == [served.links[0].name]
            served.links[0].end("it is ended")
            while took:
                await asyncio.sleep(0.01)
        await served.close(5)
        assert "WorkerLoadTime{" not in numbers.text()

    asyncio.run(asyncio.wait_for(history(), PATIENCE_S))


def test_a_handlers_words_break_no_scrape() -> None:
    nobody: Any = None
    numbers = ServerNumbers(Configuration({"metrics_mode": "prometheus", "model_metrics_auto_detect": "true"}), nobody)
    for name, unit in (("cache hits", ""), ("x 1\nforged{} 0", "ms"), ("\udce9", "a\nb"), ("cache_hits", "")):
        numbers.from_handler("m", name, 1.0, unit)
    names = {metric.name for metric in text_string_to_metric_families(numbers.text().encode().decode())}
    assert {"cache_hits", "x_1_forged___0", "_"} <= names
    assert "forged" not in names


FILE = """
model_metrics:
  counter:
    - {name: Hits, unit: Count, dimensions: [ModelName, Level]}
  gauge:
    - {name: Took, unit: s, dimensions: [ModelName, Level]}
    - {name: TookMs, unit: ms, dimensions: [ModelName, Level]}
"""


def counted(tmp_path: Path, mode: str) -> CountedVersions:
    """The numbers of a handler that has counted, and measured a time."""
    pytest.importorskip("yaml")
    (tmp_path / "metrics.yaml").write_text(FILE)
    keys = {"metrics_mode": mode, "metrics_config": str(tmp_path / "metrics.yaml")}
    numbers = ServerNumbers(Configuration(keys), LogFiles(tmp_path, tmp_path, StringIO()))
    loaded = CountedVersions(numbers=numbers)
    for name, value, unit in (("Hits", 2.0, ""), ("Took", 250.0, "ms"), ("TookMs", 250.0, "ms"), ("Unnamed", 1.0, "")):
        loaded.measured("m", name, value, unit, None)
    return loaded


def test_a_handlers_number_is_told_once(tmp_path: Path) -> None:
    loaded = counted(tmp_path, "prometheus")
    text = loaded.numbers.text() + generate_latest(loaded).decode()  # type: ignore[arg-type]  # it collects
    assert [text.count(f"# TYPE {name} ") for name in ("Hits", "Took", "Unnamed")] == [1, 1, 1]
    assert [line for line in text.splitlines() if line.startswith("Hits")] == [
        f'Hits{{ModelName="m",Level="Model",Hostname="{hostname()}",}} 2.0'
    ]


def test_a_time_in_seconds_stays_one(tmp_path: Path) -> None:
    text = counted(tmp_path, "prometheus").numbers.text()
    of = f'{{ModelName="m",Level="Model",Hostname="{hostname()}",}}'
    assert f"Took{of} 0.25\n" in text
    assert f"TookMs{of} 250.0\n" in text


def test_a_models_line_has_what_torchserves_has(tmp_path: Path) -> None:
    loaded = counted(tmp_path, "log")
    loaded.numbers.files.flush()
    line = rf" - Took\.s:0\.25\|#ModelName:m,Level:Model\|#hostname:{re.escape(hostname())},requestID:null,timestamp:\d+\n"
    assert re.search(line, (tmp_path / "model_metrics.log").read_text())
