"""Calls of the management API that take long: they wait for each other, and nothing else waits for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.served_model import ServedModel
from slotwise.backends.management.api import ManagementApi, PlainCall
from slotwise.backends.management.models import ModelTable
from slotwise.host import model_host
from slotwise.host.model_host import OwnHost
from slotwise.host.model_versions import ModelVersions
from tests.backends.test_served_model import settings
from tests.client.test_management import record

__all__ = ["settings"]  # the fixture


@asynccontextmanager
async def hosting(settings: ModelSettings, folder: Path, names: Sequence[str], patience_s: float) -> AsyncIterator[ModelTable]:
    """A host that has these models, with a ready worker each."""
    loaded = ModelVersions(patience_s=patience_s)
    host = OwnHost(loaded, record(folder, "slotwise"), 0)
    table = ModelTable(host, folder, None, {})  # type: ignore[arg-type]
    for name in names:
        served = ServedModel(dataclasses.replace(settings, name=name))
        served.scale(1)
        loaded.add(served, default=True)
        registered: Any = SimpleNamespace(name=name, version="1", id=f"{name}_1")
        table._models[name] = {"1": registered}
        while not served.is_ready:
            await asyncio.sleep(0.02)
    try:
        yield table
    finally:
        await loaded.close()


def test_as_many_calls_as_there_are_threads_do_not_block_each_other(
    settings: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has been told to go has gone only once a thread has seen its process end."""
    monkeypatch.setattr(model_host, "CALL_S", 5.0)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with hosting(settings, tmp_path, "ab", 30.0) as table:
            api = ManagementApi(table)
            answers = await asyncio.gather(*(api.unregister(PlainCall(match_info={"name": name})) for name in "ab"))
            assert [answer.status for answer in answers] == [200, 200]
            assert table.all() == []

    asyncio.run(run())
