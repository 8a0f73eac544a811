"""The queue in front of a model: order, refusals, and places that nobody may lose."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from slotwise.gateway.limits import ClientGone, MemoryBudget
from slotwise.gateway.replies import Refused
from slotwise.gateway.turns import ConcurrencyLimit

pytestmark = pytest.mark.anyio


async def stays() -> Any:
    """The channel of a client that waits patiently."""
    await asyncio.Event().wait()


async def leaves() -> Any:
    """The channel of a client that hangs up."""
    return {"type": "http.disconnect"}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_handed_on_in_order_of_arrival() -> None:
    limit, order = ConcurrencyLimit(1, 3), []

    async def one(number: int) -> None:
        await limit.enter(5, stays)
        order.append(number)
        await asyncio.sleep(0)
        limit.leave()

    await asyncio.gather(*[one(number) for number in range(4)])
    assert order == [0, 1, 2, 3]
    assert (limit.running, limit.queued) == (0, 0)


async def test_none_waits_for_more_than_half_of_its_time_and_who_hangs_up_leaves() -> None:
    limit = ConcurrencyLimit(1, 3)
    await limit.enter(1, stays)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Refused) as refused:
        await limit.enter(0.2, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    assert asyncio.get_running_loop().time() - began >= 0.1
    with pytest.raises(ClientGone):
        await limit.enter(5, leaves)
    assert (limit.running, limit.queued) == (1, 0)


async def test_a_full_queue_refuses_and_growing_lets_in() -> None:
    limit = ConcurrencyLimit(1, 1)
    await limit.enter(1, stays)
    waiting = asyncio.create_task(limit.enter(5, stays))
    await settle()
    with pytest.raises(Refused) as refused:
        await limit.enter(5, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    limit.resize(2, 1)
    await waiting
    assert (limit.running, limit.queued) == (2, 0)


async def test_who_would_wait_too_long_is_refused_at_once() -> None:
    limit = ConcurrencyLimit(1, 9)
    await limit.enter(1, stays)
    first = asyncio.create_task(limit.enter(60, stays))
    await asyncio.sleep(0.1)
    with pytest.raises(Refused) as refused:
        await limit.enter(0.15, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    patient = asyncio.create_task(limit.enter(60, stays))
    await settle()
    assert limit.queued == 2
    for waiting in (first, patient):
        limit.leave()
        await waiting
    limit.leave()
    await limit.enter(0.001, stays)
    assert (limit.running, limit.queued) == (1, 0)


async def test_no_place_is_lost_whatever_is_cancelled() -> None:
    chance = random.Random(7)
    limit = ConcurrencyLimit(3, 50)

    async def one() -> None:
        await limit.enter(chance.choice([0.0, 0.002, 5]), chance.choice([stays, stays, leaves]))
        try:
            await asyncio.sleep(chance.random() / 500)
        finally:
            limit.leave()

    tasks = [asyncio.create_task(one()) for _ in range(400)]
    for task in chance.sample(tasks, 100):
        await asyncio.sleep(chance.choice([0, 0.001]))
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert (limit.running, limit.queued) == (0, 0)
    assert all(r is None or isinstance(r, Refused | ClientGone | asyncio.CancelledError) for r in results)
    assert sum(r is None for r in results) > 5


async def test_the_memory_budget_is_exact() -> None:
    held = MemoryBudget(10)
    held.take(10)
    with pytest.raises(Refused):
        held.take(1)
    held.give_back(10)
    held.take(10)
