"""Who is ready: answered from what is known, slow to change its mind, by model, and for the whole gateway by one rule."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend import frontend as gateway_module
from slotwise.frontend import readiness
from slotwise.frontend.readiness import Readiness
from slotwise.server.record import ServerRecord

from .conftest import Front, MakeFront
from .standin import StandIn

ASKED = ("/ready", "/ready/digits", "/v2/health/ready", "/v2/models/digits/ready", "/v1/models/digits", "/ping")


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_look_that_fails_is_nothing_and_one_that_succeeds_is_little() -> None:
    clock = Clock()
    known = Readiness(clock)
    known.look({"a": False}, ())
    assert (known.server, known.model("a"), known.any_model, known.settled) == (True, False, False, False)
    known.look({"a": True}, ())
    assert (known.model("a"), known.settled) == (True, True)  # the first time it is believed at once
    for failed in (None, {"a": False}):
        known.look(failed, ())
        known.look(failed, ())  # as soon as that
        assert (known.model("a"), known.any_model, known.settled) == (True, True, False)
        clock.now += 2.9
        known.look(failed, ())
        assert known.model("a")
        known.look({"a": True}, ())
        assert known.settled
        clock.now += 10
        known.look(failed, ())
        assert known.model("a")  # what was long ago does not count
        clock.now += 3
        known.look(failed, ())
        assert (known.model("a"), known.served) == (False, {"a"})
        clock.now += 10
        known.look({"a": True}, ())
        assert not known.model("a")  # a worker that comes up only to end again
        known.look({"a": False}, ())
        clock.now += 2
        known.look({"a": True}, ())
        assert not known.model("a")
        clock.now += 2
        known.look({"a": True}, ())
        assert known.settled


def test_a_model_that_answers_is_ready_and_one_that_was_unregistered_is_not_missed() -> None:
    clock = Clock()
    known = Readiness(clock)
    known.look({"a": True, "b": True}, ())
    for _ in range(9):
        clock.now += 2
        known.look(None, {"a"})
    assert (known.model("a"), known.model("b"), known.server) == (True, False, True)
    known.look({"a": True}, ())
    assert (known.model("b"), known.served, known.settled) == (False, {"a"}, True)
    known.look({}, ())
    assert not known.any_model


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look is enough."""
    monkeypatch.setattr(readiness, "UNREADY_S", 0.0)
    monkeypatch.setattr(readiness, "READY_S", 0.0)


async def ready(front: Front, path: str = "/ready") -> bool:
    await front.gateway.refresh(0)
    answer = await front.client.get(path)
    assert answer.json()["ready"] == (answer.status_code == 200)
    return answer.status_code == 200


@pytest.mark.anyio
@pytest.mark.usefixtures("at_once")
async def test_the_gateway_is_ready_while_one_of_its_models_is(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 1, "captions": 2}))
    assert await ready(front)
    front.server.models["captions"] = 0
    assert await ready(front)
    assert not await ready(front, "/ready/captions")
    assert not await ready(front, "/v2/models/captions/ready")
    assert await ready(front, "/v2/models/digits/ready")
    front.server.models["digits"] = 0
    assert not await ready(front)
    front.server.models = {}
    assert not await ready(front)
    front.server.models = {"digits": 1}
    assert await ready(front)
    front.gateway.draining = True
    assert not await ready(front)
    assert not await ready(front, "/ready/digits")
    assert (await front.predict()).status_code == 200  # not ready, and still answering
    front.gateway.draining = False
    await ready(front)  # takes note of that answer
    await front.server.stop()
    assert not await ready(front)
    assert (await front.client.get("/healthz")).status_code == 200


@pytest.mark.anyio
@pytest.mark.usefixtures("at_once")
async def test_a_model_that_is_being_loaded_is_shown_and_not_waited_for(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 1, "loading": 0}))
    assert await ready(front)
    assert (await front.client.get("/ready/digits")).json() == {"ready": True, "workers": "1 of 1 workers"}
    loading = await front.client.get("/ready/loading")
    assert (loading.status_code, loading.json()) == (503, {"ready": False, "workers": "0 of 1 workers"})
    missing = await front.client.get("/ready/nosuch")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, 404)
    front.server.models["loading"] = 1
    assert await ready(front, "/ready/loading")


@pytest.mark.anyio
@pytest.mark.usefixtures("at_once")
async def test_a_dead_server_has_no_ready_workers(make_front: MakeFront) -> None:
    front = await make_front()
    await front.server.stop()
    await front.gateway.refresh(0)
    answer = await front.client.get("/ready")
    assert (answer.status_code, answer.json()["models"]) == (503, {"digits": "the server does not answer"})
    assert (await front.client.get("/ready/digits")).status_code == 503


@pytest.mark.anyio
async def test_who_asks_waits_for_no_call_and_makes_none(make_front: MakeFront) -> None:
    front = await make_front()
    called, go_on = threading.Semaphore(0), threading.Event()

    def slow(record: ServerRecord) -> list[Any]:
        called.release()
        go_on.wait(60)
        raise SlotwiseError("the management API stands still")

    front.backend.view = replace(front.backend.view, models=slow)
    front.backend._looked_at = float("-inf")
    try:
        async with asyncio.timeout(30):
            for path in ASKED:
                assert (await front.client.get(path)).status_code == 200, path
            assert not called.acquire(blocking=False)
            looking = asyncio.create_task(front.gateway.refresh(0))
            await asyncio.to_thread(called.acquire)
            for path in ASKED:
                assert (await front.client.get(path)).status_code == 200, path
    finally:
        go_on.set()
    await looking
    for path in ASKED:  # one look that failed
        assert (await front.client.get(path)).status_code == 200, path
    assert not called.acquire(blocking=False)


@pytest.mark.anyio
async def test_the_watch_looks_again_soon_where_something_is_not_as_it_is_known(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "WATCH_S", 0.01)
    monkeypatch.setattr(gateway_module, "MODELS_AGE_S", 3600.0)
    monkeypatch.setattr(gateway_module, "FRESH_S", 0.01)
    front = await make_front()
    assert front.gateway.readiness.settled
    watching = asyncio.create_task(front.gateway.watch())
    try:
        front.server.models["new"] = 1
        async with asyncio.timeout(60):
            while (await front.client.get("/v2/models/new/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        await front.server.stop()
        assert front.gateway.backend.reachable
        assert (await front.predict()).status_code == 502
        async with asyncio.timeout(60):
            while front.gateway.backend.reachable:
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
