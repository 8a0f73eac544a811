"""Real workers come and go with the load, and nobody loses an answer to it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from slotwise.backends.exchange import Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.served_model import ServedModel
from slotwise.host import load_watch, workers_by_load
from slotwise.host.load_watch import LoadWatch
from slotwise.host.model_host import OwnHost
from slotwise.host.model_versions import ModelVersions
from slotwise.host.workers_by_load import WorkersByLoad
from tests.backends.test_served_model import asked, settings
from tests.support.waiting import until_true

__all__ = ["settings"]  # the fixture

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(workers_by_load, "GAIN", 0.0)  # how quick this machine is, is not tried here


@asynccontextmanager
async def following(
    settings: ModelSettings, most: int, *, advise: bool = False, free_bytes: float = math.inf
) -> AsyncIterator[tuple[ServedModel, WorkersByLoad, ModelVersions]]:
    """A model whose workers follow its load from one to so many; it has requests of one each in a batch."""
    loaded = ModelVersions()
    watch = LoadWatch(loaded, lambda: free_bytes, cores=2)
    served = ServedModel(replace(settings, batch_size=1))
    loaded.add(served, default=True)
    served.scale(1)
    chooser = WorkersByLoad(1, most, advise=advise, name=served.id)
    watch.add(served, chooser)
    watching = asyncio.create_task(watch.watch())
    try:
        await until_true(lambda: served.is_ready)
        yield served, chooser, loaded
    finally:
        watching.cancel()
        await loaded.close()


@asynccontextmanager
async def clients(served: ServedModel, count: int = 8) -> AsyncIterator[list[str]]:
    """So many ask all the time; yields the list of those answers that were not their own.

    Who was in two workers that a test has killed gets no answer: it may have been it that ended them.
    """
    wrong, over = list[str](), asyncio.Event()

    async def client(i: int) -> None:
        number = i
        while not over.is_set():
            try:
                answer = await served.answer(asked(str(number)))
            except Refused:
                assert served.ends["died"]
            else:
                if answer.body != f"answer to {number}".encode():
                    wrong.append(f"{number}: {answer.body!r}")
            number += count

    async with asyncio.TaskGroup() as group:
        for i in range(count):
            group.create_task(client(i))
        yield wrong
        over.set()


def test_new_limits_leave_the_number_that_the_load_has_chosen_alone_where_it_fits(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 8) as (served, chooser, loaded):
            host: Any = OwnHost.__new__(OwnHost)
            host.loaded, host.loop = loaded, asyncio.get_running_loop()
            for limits, wanted in (((2, 2), 2), ((1, 8), 2), ((3, 8), 3), ((1, 1), 1)):
                about = SimpleNamespace(name="m", version="1", min_workers=limits[0], max_workers=limits[1])
                await asyncio.to_thread(host.scale, about)
                assert (chooser.least, chooser.most, served.wanted) == (*limits, wanted)

    asyncio.run(history())


def test_of_two_models_each_has_its_share_of_the_cores_and_more_while_they_are_free(settings: ModelSettings) -> None:
    async def history() -> None:
        loaded = ModelVersions()
        watch = LoadWatch(loaded, lambda: math.inf, cores=2)
        one, other = (ServedModel(replace(settings, name=name, batch_size=1)) for name in ("one", "other"))
        for served in (one, other):
            loaded.add(served, default=True)
            served.scale(1)
            watch.add(served, WorkersByLoad(1, 2, share=1, name=served.id))
        watching = asyncio.create_task(watch.watch())
        try:
            await until_true(lambda: one.is_ready and other.is_ready)
            async with clients(one) as wrong:
                await until_true(lambda: len(one.queue.workers) == 2)
                async with clients(other) as wrong_there:
                    await until_true(lambda: one.wanted == len(one.links) == 1)
                    assert other.wanted == 1
                await until_true(lambda: len(one.queue.workers) == 2)
            assert wrong == wrong_there == []
            assert one.ledger.ended["answered"] == one.ledger.admitted
            assert loaded.by_load[one].counts["share"] == 1
            assert not loaded.by_load[other].counts
        finally:
            watching.cancel()
            await loaded.close()

    run(history)


def run(history: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(history())


def test_workers_come_with_the_load_and_go_with_it(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 3) as (served, chooser, loaded):
            async with clients(served) as wrong:
                await until_true(lambda: len(served.queue.workers) == 3)
            await until_true(lambda: served.wanted == 1 and len(served.links) == 1)
            async with clients(served) as wrong_again:
                await until_true(lambda: len(served.queue.workers) == 3)
            assert wrong == wrong_again == []
            assert served.ledger.ended["answered"] == served.ledger.admitted > 0
            assert not served.ends
            assert chooser.counts["busy"] >= 2
            assert chooser.counts["idle"] >= 1  # on a busy machine in two steps
            registry = CollectorRegistry()
            registry.register(loaded)
            text = generate_latest(registry).decode()
            assert f'slotwise_host_wanted_workers{{model="m",version="1"}} {served.wanted}.0' in text
            changes = f'slotwise_host_worker_changes_total{{model="m",reason="idle",version="1"}} {chooser.counts["idle"]}.0'
            assert changes in text

    run(history)


def test_workers_that_die_meanwhile_change_no_choice(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 3) as (served, chooser, _), clients(served) as wrong:
            for _ in range(4):
                ready = [link for link in served.links if link.status == "READY"]
                if ready:
                    os.kill(ready[0].pid, signal.SIGKILL)
                await asyncio.sleep(0.3)
            await until_true(lambda: len(served.queue.workers) == 3)
            assert wrong == []
            assert set(chooser.counts) <= {"busy", "idle"}  # idle: clients of a busy machine are

    run(history)


def test_there_are_no_more_than_there_is_memory_for(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 3, free_bytes=1) as (served, chooser, _), clients(served) as wrong:
            await until_true(lambda: "no memory" in chooser.choice)
            assert served.wanted == 1
            assert wrong == []

    run(history)


def test_advice_is_only_said(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 3, advise=True) as (served, chooser, _), clients(served) as wrong:
            await until_true(lambda: chooser.counts["busy"])
            assert chooser.choice.startswith("it would choose")
            assert served.wanted == len(served.links) == 1
            assert wrong == []

    run(history)


def test_one_that_does_not_start_leaves_those_that_do(settings: ModelSettings) -> None:
    async def history() -> None:
        async with following(settings, 2) as (served, chooser, _):
            framed = next(served.settings.model_dir.rglob("framed.py"))
            text = framed.read_text()
            framed.write_text("raise SystemExit('no library')")
            async with clients(served) as wrong:
                await until_true(lambda: chooser.counts["failed"])
                await until_true(lambda: served.wanted == len(served.links) == 1)
            framed.write_text(text)
            assert wrong == []
            assert served.is_ready
            assert served.ledger.ended["answered"] == served.ledger.admitted

    run(history)
