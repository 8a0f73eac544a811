"""Places to read gRPC's messages in: nobody has all of them, everybody gets one, and none is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from slotwise.backends.interface import Refused
from slotwise.frontend.admission.reading_places import ReadingPlaces

pytestmark = pytest.mark.anyio
LONG_S = 600.0
Idle = Callable[..., asyncio.Task[None]]


@pytest.fixture
async def idle() -> AsyncIterator[Idle]:
    """Starts a call that takes a place and does not let it go."""
    tasks: list[asyncio.Task[None]] = []

    async def hold(places: ReadingPlaces, client: str, connection: str) -> None:
        async with places.place(client, connection):
            await asyncio.Event().wait()

    def start(*given: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(hold(*given)))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        yield


@pytest.mark.parametrize("other", [("b", "b1"), ("a", "a2")])
async def test_idle_calls_of_one_connection_leave_places_to_others(idle: Idle, other: tuple[str, str]) -> None:
    places = ReadingPlaces(8, LONG_S)
    for _ in range(100):
        idle(places, "a", "a1")
    await settle()
    async with soon(), places.place(*other), places.place(*other):
        assert len(places._lent) == 4 + 2


async def test_idle_calls_of_many_connections_leave_places_to_other_clients(idle: Idle) -> None:
    places = ReadingPlaces(8, LONG_S)
    for i in range(100):
        idle(places, "a", f"a{i}")
    await settle()
    async with soon(), places.place("b", "b1"), places.place("c", "c1"):
        assert len(places._lent) == 8


async def test_whose_client_has_the_fewest_places_is_next(idle: Idle) -> None:
    places, order = ReadingPlaces(4, LONG_S), list[str]()
    holding = [idle(places, name[0], name) for name in ("a1", "a2", "b1", "c1")]
    await settle()

    async def call(client: str, connection: str) -> None:
        async with places.place(client, connection):
            order.append(connection)

    asked = [asyncio.create_task(call(*given)) for given in (("a", "a3"), ("b", "b2"), ("d", "d1"), ("d", "d2"))]
    await settle()
    holding[3].cancel()
    await asyncio.gather(*asked)
    assert order == ["d1", "d2", "b2", "a3"]


async def test_what_is_lent_for_too_long_is_taken_back_where_somebody_waits(idle: Idle) -> None:
    places = ReadingPlaces(4, 0.2)
    kept = [idle(places, client, client) for client in ("a", "b", "c", "d")]
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in kept)  # nobody waits
    async with soon():
        async with places.place("e", "e1"):
            pass
        assert sum(task.done() for task in kept) == 1
        with pytest.raises(Refused) as refused:
            await kept[0]
    assert refused.value.status == 503


async def test_a_connection_of_its_own_calls_goes_on(idle: Idle) -> None:
    places = ReadingPlaces(8, 0.05)
    held = [idle(places, "a", "a1") for _ in range(8)]
    await settle()
    async with soon(), places.place("a", "a1"):
        pass
    assert any(task.done() for task in held)


async def test_no_place_is_lost_whatever_is_cancelled() -> None:
    places, randomly = ReadingPlaces(5, 0.01), random.Random(7)

    async def call() -> None:
        client = str(randomly.randrange(4))
        async with places.place(client, client + str(randomly.randrange(3))):
            assert len(places._lent) <= 5
            assert max(places._of_client.values()) <= places.most_of_client
            await asyncio.sleep(randomly.choice([0, 0, 0.001, 0.05]))

    tasks = [asyncio.create_task(call()) for _ in range(400)]
    for task in randomly.sample(tasks, 100):
        await asyncio.sleep(0)
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Refused):
            await task
    assert (places._lent, places._waiting, places._of_client, places._of_connection) == ({}, {}, {}, {})
