"""Models that nobody asks sleep, those asked longest ago make room, and nobody loses a request to it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from slotwise.backends.exchange import Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.served_model import ServedModel
from slotwise.host import idle_models
from slotwise.host.idle_models import IdleModels
from tests.backends.test_served_model import Asked, settings
from tests.support.waiting import until_true

__all__ = ["settings"]  # the fixture


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOOK_S", 0.05), ("STAY_S", 0.2), ("PATIENCE_S", 0.3)):
        monkeypatch.setattr(idle_models, name, value)


@asynccontextmanager
async def several(settings: ModelSettings, count: int, budget: int = 0) -> AsyncIterator[tuple[IdleModels, list[ServedModel]]]:
    """So many models with one worker each, and who puts them to sleep."""
    models: list[ServedModel] = []
    idle = IdleModels(lambda: models, budget)
    watching = asyncio.create_task(idle.watch())
    for i in range(count):
        models.append(ServedModel(dataclasses.replace(settings, name=f"m{i}")))
        models[i].asked_asleep = idle.asked
        models[i].scale(1)
        while not models[i].is_ready and not models[i].asleep:
            await asyncio.sleep(0.01)
    try:
        yield idle, models
    finally:
        watching.cancel()
        await asyncio.gather(*(model.close(5) for model in models))


def asked(model: ServedModel, body: str) -> Asked:
    return Asked(model.settings.name, time.monotonic() + 120, f"r-{body}", "/predictions/m", {}, body.encode())


def test_a_model_that_nobody_asks_sleeps_and_the_next_request_waits_for_it(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(dataclasses.replace(settings, idle_timeout_s=0.5), 1) as (_, (model,)):
            first = model.links[0].pid
            assert (await model.answer(asked(model, "1"))).body == b"answer to 1"
            await until_true(lambda: model.asleep and not model.links)
            assert [worker.status for worker in model.workers()] == ["ASLEEP"]
            answers = await asyncio.gather(*(model.answer(asked(model, str(i))) for i in range(9)))
            assert [answer.body for answer in answers] == [f"answer to {i}".encode() for i in range(9)]
            assert model.links[0].pid != first
            assert model.ledger.ended["answered"] == 10

    asyncio.run(history())


def test_one_that_is_asked_all_the_time_does_not_sleep(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(dataclasses.replace(settings, idle_timeout_s=3), 1) as (idle, (model,)):
            until = time.monotonic() + 4
            while time.monotonic() < until:
                await model.answer(asked(model, "1"))
                await asyncio.sleep(0.1)
            assert idle.slept == 0

    asyncio.run(history())


def test_it_is_idle_from_its_last_answer_and_not_from_its_last_request(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 1) as (_, (model,)):
            began = asyncio.get_running_loop().time()
            await model.answer(asked(model, "slow"))
            ended = asyncio.get_running_loop().time()
            assert model.unused_s(ended) <= ended - began - 1  # which is what it takes

    asyncio.run(history())


def test_who_does_not_want_to_wait_gets_503_and_it_wakes_up(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(dataclasses.replace(settings, refuses_asleep=True), 1) as (_, (model,)):
            model.sleep()
            with pytest.raises(Refused, match="is being woken up") as refused:
                await model.answer(asked(model, "1"))
            assert (refused.value.status, refused.value.retry_after_s is not None) == (503, True)
            await until_true(lambda: not model.asleep and model.is_ready)
            assert (await model.answer(asked(model, "2"))).status == 200

    asyncio.run(history())


@pytest.mark.parametrize(("count", "fit"), [(10, 3), pytest.param(50, 5, marks=pytest.mark.slow)])
def test_models_of_which_a_few_fit_answer_a_skewed_load_and_lose_nothing(settings: ModelSettings, count: int, fit: int) -> None:
    draw = random.Random(0)

    async def history() -> None:
        async with several(settings, count, 1) as (idle, models):
            size = max(idle.sizes.values())
            idle.budget_bytes = int((fit + 0.5) * size)
            await until_true(lambda: sum(not model.asleep for model in models) <= fit)
            most = 0

            async def client(number: int) -> None:
                nonlocal most
                for i in range(12):
                    model = models[min(int(draw.expovariate(6 / count)), count - 1)]
                    body = f"{number}-{i}"
                    assert (await model.answer(asked(model, body))).body == f"answer to {body}".encode()
                    most = max(most, sum(len(one.links) for one in models if not one.asleep))
                    await asyncio.sleep(draw.uniform(0, 0.05))

            await asyncio.wait_for(asyncio.gather(*map(client, range(16))), 600)
            assert most <= fit + 1  # of which one may be on its way out
            assert idle.slept > 5
            assert sum(model.ledger.ended["answered"] for model in models) == 16 * 12
            assert not any(model.ledger.open for model in models)

    asyncio.run(history())


def test_where_all_are_busy_the_others_get_their_turn(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 2) as (idle, (busy, other)):
            other.sleep()
            await until_true(lambda: not other.links)
            idle.sizes = {busy.id: 10, other.id: 10}
            idle.budget_bytes = 15
            going = True

            async def keep_busy(number: int) -> int:
                answered = 0
                while going:
                    assert (await busy.answer(asked(busy, f"{number}-{answered}"))).status == 200
                    answered += 1
                return answered

            clients = [asyncio.create_task(keep_busy(i)) for i in range(6)]
            await asyncio.sleep(0.5)
            assert (await asyncio.wait_for(other.answer(asked(other, "1")), 60)).status == 200
            await asyncio.sleep(0.5)
            going = False
            assert all(await asyncio.wait_for(asyncio.gather(*clients), 60))

    asyncio.run(history())


def test_one_that_is_larger_than_everything_is_woken_up_alone(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 2) as (idle, (one, other)):
            idle.budget_bytes = 1
            await until_true(lambda: one.asleep and other.asleep)
            assert (await asyncio.wait_for(one.answer(asked(one, "1")), 60)).status == 200
            assert (await asyncio.wait_for(other.answer(asked(other, "2")), 60)).status == 200

    asyncio.run(history())


def test_a_worker_that_is_replaced_says_nothing_of_how_long_waking_takes(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 1) as (_, (model,)):
            model.sleep()
            await until_true(lambda: not model.links)
            await model.answer(asked(model, "1"))
            took_s = model.start_s
            before = model.links[0].pid
            model.links[0].end("it is ended")
            await until_true(lambda: model.is_ready and model.links[0].pid != before)
            assert model.start_s == took_s < 30

    asyncio.run(history())


def test_who_waits_for_a_model_that_sleeps_is_answered_when_it_is_unregistered(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 1) as (_, (model,)):
            model.sleep()
            model.asked_asleep = lambda model: None  # nobody has come to wake it yet
            await until_true(lambda: not model.links)
            answer = asyncio.create_task(model.answer(asked(model, "1")))
            await until_true(lambda: len(model.queue.waiting) == 1)
            await model.close(20)
            assert (await answer).body == b"answer to 1"

    asyncio.run(history())


def test_a_start_that_failed_before_it_slept_refuses_nobody_who_wakes_it(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 2) as (idle, (model, other)):
            idle.budget_bytes = max(idle.sizes.values(), default=0) or 1
            model.failure = "it ended with -9"
            model.sleep()
            await until_true(lambda: not model.links)
            answers = await asyncio.wait_for(
                asyncio.gather(*(one.answer(asked(one, f"{i}")) for i in range(4) for one in (model, other))), 120
            )
            assert {answer.status for answer in answers} == {200}
            assert idle.slept < 20

    asyncio.run(history())


def test_what_a_worker_had_in_hand_when_it_died_wakes_its_model(settings: ModelSettings) -> None:
    async def history() -> None:
        async with several(settings, 1) as (_, (model,)):
            answers = [asyncio.create_task(model.answer(asked(model, body))) for body in ("slow", "1", "2")]
            await until_true(lambda: any(worker.in_hand for worker in model.queue.workers))
            model.sleep()
            os.kill(model.links[0].pid, signal.SIGKILL)
            found = await asyncio.wait_for(asyncio.gather(*answers), 120)
            assert [one.body for one in found] == [b"answer to slow", b"answer to 1", b"answer to 2"]

    asyncio.run(history())


def test_one_that_does_not_end_keeps_nobody_from_waking_up(settings: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_models, "LATE_S", 0.5, raising=False)

    async def history() -> None:
        async with several(dataclasses.replace(settings, response_timeout_s=60.0), 3, 1) as (idle, models):
            size = max(idle.sizes.values())
            await until_true(lambda: all(model.asleep for model in models[:2]))
            idle.budget_bytes = int(2.5 * size)
            hanging, free, wanted = models
            first = asyncio.create_task(hanging.answer(asked(hanging, "hang")))
            await free.answer(asked(free, "1"))
            await until_true(lambda: any(worker.in_hand for worker in hanging.queue.workers))
            await until_true(lambda: wanted.asleep or not wanted.ledger.open)
            wanted.sleep()
            hanging.sleep()
            assert (await asyncio.wait_for(wanted.answer(asked(wanted, "2")), 50)).body == b"answer to 2"
            hanging.links[0].end("the test is over")
            first.cancel()

    asyncio.run(history())
