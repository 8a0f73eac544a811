"""A share of the requests goes to another archive; what it fails at, the old one answers."""

from __future__ import annotations

import asyncio
import os
from collections import deque

import pytest

from slotwise.gateway import canary
from slotwise.gateway.canary import Canary, RolloutRecord
from slotwise.server.processes import start_time
from tests.support.hedges import Clock

from .conftest import Front, MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


def wanted(percent: float, **given: object) -> RolloutRecord:
    pid = os.getpid()
    own = {"name": "default", "pid": pid, "started": start_time(pid), "model": "digits", "new": "digits--new", "window_s": 60.0}
    return RolloutRecord(**{**own, "percent": percent, **given})  # type: ignore[arg-type]


async def fronted(make_front: MakeFront, percent: float, script: list[str], **given: object) -> Front:
    server = StandIn(models={"digits": 1, "digits--new": 1}, script=deque(script), batch_size=64)
    front = await make_front(server)
    front.gateway.canary = Canary(wanted(percent, **given))
    return front


def asked(front: Front) -> list[str]:
    return [seen.target.split("/")[2] for seen in front.server.seen]


async def test_the_share_is_of_the_request_ids_and_a_larger_one_holds_the_smaller(make_front: MakeFront) -> None:
    front = await fronted(make_front, 10, [])
    shares = {}
    for percent in (10, 50):
        front.gateway.canary = Canary(wanted(percent))
        front.server.seen.clear()
        await asyncio.gather(*[front.predict(headers={"x-request-id": f"id-{i}"}) for i in range(100)])
        shares[percent] = {seen.headers["x-request-id"] for seen in front.server.seen if "--new" in seen.target}
    assert shares[10] < shares[50]
    assert len(shares[10]) < 25 < len(shares[50]) < 75


async def test_a_5xx_of_the_new_archive_is_answered_by_the_old_one(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, ["fault", "answer", "died", "died", "answer", "bad"])
    assert (await front.predict()).status_code == 200
    assert asked(front) == ["digits--new", "digits"]
    assert (await front.predict()).status_code == 200  # a killer of the new archive is none of the old one's
    assert asked(front)[2:] == ["digits--new", "digits--new", "digits"]
    assert (await front.predict()).status_code == 400  # the client's own fault
    assert asked(front)[5:] == ["digits--new"]
    assert front.gateway.canary is not None
    assert front.gateway.canary._new.requests == 3
    assert front.gateway.canary._new.errors == 2


async def test_a_version_that_is_named_is_what_is_asked(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, [])
    assert (await front.client.post("/predictions/digits/1.0", content=b"x")).status_code == 200
    assert asked(front) == ["digits"]


async def test_a_shadow_gets_copies_and_nobody_its_answers(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, ["answer", "answer", "answer", "fault"], shadow=True)
    for _ in range(2):
        assert (await front.predict()).status_code == 200
        found = front.gateway.canary
        assert found is not None
        while found._copies:
            await asyncio.sleep(0.001)
    assert asked(front) == ["digits", "digits--new"] * 2
    assert (found.compared, found.differing) == (2, 1)


async def test_who_started_it_and_has_ended_wants_nothing_any_more(make_front: MakeFront) -> None:
    assert RolloutRecord.load("default") is None
    front = await fronted(make_front, 100, [])
    await front.gateway.refresh(0)  # its backend knows of no roll-out
    assert front.gateway.canary is None


async def test_windows_are_closed_in_time_and_begin_anew_with_a_step() -> None:
    clock = Clock()
    rollout = Canary(wanted(10), clock)
    rollout._new.count(0.5, error=False)
    rollout._old.count(0.1, error=True)
    assert rollout.shown()["windows"] == []
    clock.now += 60
    window = {"old": {"requests": 1, "errors": 1, "p99_ms": 0.0}, "new": {"requests": 1, "errors": 0, "p99_ms": 500.0}}
    assert rollout.shown()["windows"] == [window]
    rollout.follow(wanted(50, step=1))
    assert rollout.shown()["windows"] == []


def test_answers_that_differ_in_the_third_digit_are_the_same() -> None:
    one, other, third = ({"p": {"7": p}, "x": [1, "a"]} for p in (0.98123, 0.98071, 0.9))
    assert canary._rounded(one) == canary._rounded(other) != canary._rounded(third)
