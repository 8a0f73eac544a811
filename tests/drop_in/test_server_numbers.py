"""TorchServe's metrics of a server whose workers come and go."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from slotwise.backends.local.model_settings import ModelSettings
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.own_host import LoggedModel
from slotwise.drop_in.server_numbers import ServerNumbers
from tests.backends.test_served_model import settings

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

    asyncio.run(asyncio.wait_for(history(), 30))


def test_a_handlers_words_break_no_scrape() -> None:
    nobody: Any = None
    numbers = ServerNumbers(Configuration({"metrics_mode": "prometheus", "model_metrics_auto_detect": "true"}), nobody)
    for name, unit in (("cache hits", ""), ("x 1\nforged{} 0", "ms"), ("\udce9", "a\nb"), ("cache_hits", "")):
        numbers.from_handler("m", name, 1.0, unit)
    names = {metric.name for metric in text_string_to_metric_families(numbers.text().encode().decode())}
    assert {"cache_hits", "x_1_forged___0", "_"} <= names
    assert "forged" not in names
