"""The queue in front of a model: order, refusals, and places that nobody may lose."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.interface import Refused
from slotwise.backends.priorities import PATIENCE
from slotwise.frontend.admission import fair_shares
from slotwise.frontend.admission.fair_shares import ConcurrencyLimit, Turn
from slotwise.frontend.admission.limits import ClientGone, MemoryBudget, Receive
from slotwise.frontend.traffic import ModelTraffic

pytestmark = pytest.mark.anyio


async def stays() -> Any:
    """The channel of a client that waits patiently."""
    await asyncio.Event().wait()


async def leaves() -> Any:
    """The channel of a client that hangs up."""
    return {"type": "http.disconnect"}


async def enter(
    limit: ConcurrencyLimit, timeout_s: float, receive: Receive, sender: str = "somebody", priority: int = 0
) -> Turn:
    """One request, let in; it has a place when this returns."""
    turn = limit.admit(sender, timeout_s, priority=priority)
    await limit.enter(turn, timeout_s, receive)
    return turn


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_handed_on_in_order_of_arrival() -> None:
    limit, order = ConcurrencyLimit(1, 3), []

    async def one(number: int) -> None:
        turn = await enter(limit, 5, stays)
        order.append(number)
        await asyncio.sleep(0)
        limit.leave(turn)

    await asyncio.gather(*[one(number) for number in range(4)])
    assert order == [0, 1, 2, 3]
    assert (limit.running, limit.queued) == (0, 0)


async def test_none_waits_for_more_than_half_of_its_time_and_who_hangs_up_leaves() -> None:
    limit = ConcurrencyLimit(1, 3)
    await enter(limit, 1, stays)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Refused) as refused:
        await enter(limit, 0.2, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    assert asyncio.get_running_loop().time() - began >= 0.1
    with pytest.raises(ClientGone):
        await enter(limit, 5, leaves)
    assert (limit.running, limit.queued) == (1, 0)


async def test_a_full_queue_refuses_and_growing_lets_in() -> None:
    limit = ConcurrencyLimit(1, 1)
    await enter(limit, 1, stays)
    waiting = asyncio.create_task(enter(limit, 5, stays))
    await settle()
    with pytest.raises(Refused) as refused:
        await enter(limit, 5, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    limit.resize(2, 1)
    await waiting
    assert (limit.running, limit.queued) == (2, 0)


async def test_the_first_request_of_a_sender_waits_also_where_the_queue_is_full() -> None:
    limit = ConcurrencyLimit(1, 2)
    turn = await enter(limit, 5, stays, "hog")
    waiting = [asyncio.create_task(enter(limit, 5, stays, f"{i}")) for i in range(fair_shares.SENDERS)]
    await settle()
    assert limit.queued == fair_shares.SENDERS
    for sender in ("0", "hog"):  # its second; the first of one more than so many senders
        with pytest.raises(Refused):
            limit.refuse_if_full(sender)
    for each in waiting:
        limit.leave(turn)
        turn = await each
    limit.leave(turn)
    assert (limit.running, limit.queued, limit._running_of, limit._waiting) == (0, 0, {}, {})


async def test_the_next_request_of_a_sender_whose_only_place_is_free_again_goes_on_whoever_else_waits() -> None:
    limit = ConcurrencyLimit(2, 4, lends=True)
    places = [await enter(limit, 5, stays, "many", priority=3) for _ in range(2)]
    first = await enter(limit, 5, stays, "two")
    waiting = [asyncio.create_task(enter(limit, 5, stays, sender, priority)) for sender, priority in (("many", 3), ("two", 0))]
    await settle()
    assert (limit.running, limit.queued) == (3, 2)
    limit.leave(first)  # a request of "two" that came now would go on: so does the one that waits
    await settle()
    assert [each.done() for each in waiting] == [False, True]
    for turn in (*places, waiting[1].result()):
        limit.leave(turn)
    limit.leave(await waiting[0])
    assert (limit.running, limit.queued, limit._running_of, limit._waiting) == (0, 0, {}, {})


@pytest.mark.parametrize(
    ("queued", "room", "sizes", "records"),
    [
        (-1, 1000, (16, 8), 16),
        (400, 1000, (408, 8), 16),
        (1000, 1000, (1008, 8), 16),  # our own host's front: who comes to a full queue is seen there
        (400, 100, (100, 316), 16),  # the others wait here, as many as somebody wanted
        (-1, 4, (16, 8), 4),  # a request's records do not fill the queue of an idle model
        (400, 0, (408, 8), 16),  # nobody has said it
    ],
)
async def test_what_the_queue_of_a_host_does_not_take_waits_here(
    queued: int, room: int, sizes: tuple[int, int], records: int
) -> None:
    traffic = ModelTraffic(0, queued, True, takes_turns=True)
    model = SimpleNamespace(workers=[0], batch_size=8, queue_size=room)
    traffic.fit(model)  # type: ignore[arg-type]
    assert (traffic.limit.in_flight_max, traffic.limit.queue_max, traffic.records) == (*sizes, records)


async def test_who_would_wait_too_long_is_refused_at_once() -> None:
    limit = ConcurrencyLimit(1, 9)
    turn = await enter(limit, 1, stays)
    first = asyncio.create_task(enter(limit, 60, stays))
    await asyncio.sleep(0.1)
    with pytest.raises(Refused) as refused:
        await enter(limit, 0.15, stays)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    patient = asyncio.create_task(enter(limit, 60, stays))
    await settle()
    assert limit.queued == 2
    for waiting in (first, patient):
        limit.leave(turn)
        turn = await waiting
    limit.leave(turn)
    await enter(limit, 0.001, stays)
    assert (limit.running, limit.queued) == (1, 0)


async def test_no_place_is_lost_whatever_is_cancelled() -> None:
    chance = random.Random(7)
    limit = ConcurrencyLimit(3, 50)

    async def one() -> None:
        sender, receive = chance.choice("abcdefgh"), chance.choice([stays, stays, leaves])
        turn = limit.admit(sender, 5)
        for _ in range(chance.choice([1, 1, 5])):
            await limit.enter(turn, chance.choice([0.0, 0.002, 5]), receive)
            try:
                await asyncio.sleep(chance.random() / 500)
            finally:
                limit.leave(turn)

    tasks = [asyncio.create_task(one()) for _ in range(400)]
    for task in chance.sample(tasks, 100):
        await asyncio.sleep(chance.choice([0, 0.001]))
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert (limit.running, limit.queued, limit._running_of, limit._waiting) == (0, 0, {}, {})
    assert all(r is None or isinstance(r, Refused | ClientGone | asyncio.CancelledError) for r in results)
    assert sum(r is None for r in results) > 5


async def test_a_free_place_goes_to_the_sender_that_has_the_fewest() -> None:
    limit = ConcurrencyLimit(2, 9)
    first, second = [await enter(limit, 5, stays, "many") for _ in range(2)]
    many = asyncio.create_task(enter(limit, 5, stays, "many"))
    await settle()
    few = asyncio.create_task(enter(limit, 5, stays, "few"))
    await settle()
    limit.leave(first)
    await settle()
    assert (few.done(), many.done()) == (True, False)
    limit.leave(second)
    limit.leave(await many)
    limit.leave(await few)


async def test_senders_take_turns_and_so_do_the_requests_of_each() -> None:
    limit, order = ConcurrencyLimit(1, 9), list[str]()
    first = await enter(limit, 5, stays, "many")

    async def one(sender: str, name: str, records: int) -> None:
        turn = limit.admit(sender, 5)
        for _ in range(records):
            await limit.enter(turn, 5, stays)
            order.append(name)
            await settle()
            limit.leave(turn)

    asked = [("many", "a", 3), ("many", "b", 3), ("few", "c", 2), ("other", "d", 1)]
    tasks = [asyncio.create_task(one(*each)) for each in asked]
    await settle()
    assert limit.queued == 4
    limit.leave(first)
    await asyncio.gather(*tasks)
    assert "".join(order) == "acdbcabab"


async def test_who_fills_the_queue_gives_way_to_who_has_less_in_it() -> None:
    limit = ConcurrencyLimit(1, 3)
    turn = await enter(limit, 5, stays, "hog")
    waiting = [asyncio.create_task(enter(limit, 5, stays, "hog")) for _ in range(3)]
    await settle()
    with pytest.raises(Refused):
        limit.refuse_if_full("hog")
    other = asyncio.create_task(enter(limit, 5, stays, "other"))
    await settle()
    assert (limit.queued, [each.done() for each in waiting]) == (3, [False, False, True])
    with pytest.raises(Refused) as refused:
        await waiting.pop()
    assert refused.value.status == 429
    with pytest.raises(Refused):  # as many as the other would have
        limit.refuse_if_full("other")
    limit.leave(turn)
    assert (await waiting[0]).sender == "hog"  # neither has a place, and this one came first
    limit.leave(await waiting[0])
    limit.leave(await other)
    limit.leave(await waiting[1])
    assert (limit.running, limit.queued) == (0, 0)


async def test_what_one_sender_has_waited_refuses_no_other() -> None:
    limit = ConcurrencyLimit(1, 9)
    turn = await enter(limit, 5, stays, "slow")
    slow = asyncio.create_task(enter(limit, 60, stays, "slow"))
    await asyncio.sleep(0.8)
    with pytest.raises(Refused):
        limit.admit("slow", 1.5)
    other = asyncio.create_task(enter(limit, 1.5, stays, "other"))
    await settle()
    limit.leave(turn)
    limit.leave(await slow)
    limit.leave(await other)


async def test_a_request_that_has_started_waits_until_its_deadline_for_the_rest() -> None:
    limit = ConcurrencyLimit(1, 9)
    turn = await enter(limit, 5, stays, "one")
    with pytest.raises(Refused) as refused:
        await limit.enter(turn, 0.05, stays)
    assert refused.value.status == 504
    assert (limit.running, limit.queued) == (1, 0)


async def test_the_memory_budget_is_exact() -> None:
    held = MemoryBudget(10)
    held.take(10)
    with pytest.raises(Refused):
        held.take(1)
    held.give_back(10)
    held.take(10)


async def test_places_go_by_weight_and_to_the_highest_priority_first() -> None:
    limit, got = ConcurrencyLimit(8, 99), list[str]()

    async def one(sender: str, weight: int, priority: int = 0) -> None:
        turn = limit.admit(sender, 60, weight, priority)
        await limit.enter(turn, 60, stays)
        got.append(sender)

    first = [await enter(limit, 1, stays, "x") for _ in range(8)]
    waiting = [asyncio.create_task(one(name, weight)) for name, weight in (("a", 1), ("b", 3)) for _ in range(8)]
    waiting.append(asyncio.create_task(one("boss", 1, 1)))
    await settle()
    for turn in first:
        limit.leave(turn)
    await settle()
    assert (got[0], got.count("b"), got.count("a")) == ("boss", 5, 2)
    for task in waiting:
        task.cancel()


async def test_a_low_priority_gets_a_place_beside_a_flood_of_a_higher_one() -> None:
    limit, got = ConcurrencyLimit(1, 99), list[str]()

    async def one(sender: str, priority: int) -> None:
        limit.leave(await enter(limit, 60, stays, sender, priority=priority))
        got.append(sender)

    first = await enter(limit, 60, stays, "x")
    waiting = [asyncio.create_task(one(*who)) for who in [("boss", 9)] * 60 + [("middle", 1)] * 2 + [("last", -9)] * 2]
    await settle()
    limit.leave(first)
    await asyncio.wait(waiting)
    assert got[:PATIENCE] == ["boss"] * PATIENCE
    assert max(got.index("middle"), got.index("last")) <= PATIENCE + 1
    assert [got.count(name) for name in ("boss", "middle", "last")] == [60, 2, 2]


async def test_a_sender_without_a_place_is_lent_one_where_the_server_takes_turns() -> None:
    limit = ConcurrencyLimit(2, 0, lends=True, wait_s=lambda count: 3.2 * count)
    hog = [await enter(limit, 1, stays, "hog") for _ in range(2)]
    light = await enter(limit, 1, stays, "light")
    assert (limit.running, limit.queued) == (3, 0)
    for sender in ("hog", "light"):
        with pytest.raises(Refused) as refused:
            await enter(limit, 1, stays, sender)
        assert (refused.value.status, refused.value.retry_after_s) == (429, 10)
    limit.leave(light)
    limit.leave(await enter(limit, 1, stays, "light"))
    for turn in hog:
        limit.leave(turn)
    assert (limit.running, limit._running_of) == (0, {})


async def test_who_waits_is_lent_a_place_when_its_last_one_comes_back() -> None:
    limit = ConcurrencyLimit(1, 9, lends=True)
    await enter(limit, 1, stays, "hog")
    light = await enter(limit, 1, stays, "light")
    second = asyncio.create_task(enter(limit, 5, stays, "light"))
    await settle()
    assert (limit.running, limit.queued) == (2, 1)
    limit.leave(light)
    await asyncio.wait_for(second, 5)
    assert (limit.running, limit.queued) == (2, 0)


async def test_who_has_a_low_priority_gives_way_though_it_has_less() -> None:
    limit = ConcurrencyLimit(1, 2)
    await enter(limit, 1, stays, "x")

    async def one(sender: str, priority: int) -> None:
        await limit.enter(limit.admit(sender, 60, 1, priority), 60, stays)

    waiting = [asyncio.create_task(one("high", 1)), asyncio.create_task(one("low", -1))]
    await settle()
    waiting.append(asyncio.create_task(one("high", 1)))
    with pytest.raises(Refused):
        await waiting[1]
    assert not waiting[0].done()
    assert limit.queued == 2
    for task in waiting:
        task.cancel()
