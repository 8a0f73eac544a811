"""TorchServe's metrics of a server whose workers come and go."""

from __future__ import annotations

import asyncio
from typing import Any

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
