"""Requests whose answer is late: when another copy is sent, how many there may be, and that nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import deque

import pytest

from slotwise.backends.remote import hedging, race
from slotwise.backends.remote import retry_alone as alone
from slotwise.backends.remote.hedging import (
    HEDGED_SHARE,
    HEDGES_AT_LEAST,
    LATE_AT_LEAST_S,
    LATE_WITHOUT_TIMES_S,
    PERIOD_S,
    RANK_EVERY,
    Hedging,
)
from slotwise.backends.remote.worker_end import NOTICE_S
from tests.support.hedges import Clock, counted, hedged

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


def test_late_is_twice_the_p95_never_under_the_floor() -> None:
    hedges = Hedging()
    assert hedges.late_s == LATE_WITHOUT_TIMES_S
    for _ in range(RANK_EVERY - 1):
        hedges.record_answer(1.0)
    assert hedges.late_s == LATE_WITHOUT_TIMES_S
    hedges.record_answer(1.0)
    assert hedges.late_s == 2.0
    for _ in range(hedging.RECENT_ANSWERS):
        hedges.record_answer(0.001)
    assert hedges.late_s == LATE_AT_LEAST_S
    for i in range(hedging.RECENT_ANSWERS):
        hedges.record_answer(3.0 if i % 10 == 0 else 0.2)
    assert hedges.late_s == 6.0


def test_the_budget_is_a_share_of_the_last_seconds_requests_and_never_under_the_least() -> None:
    clock = Clock()
    hedges = Hedging(clock=clock)
    assert [hedges.take_from_budget() for _ in range(HEDGES_AT_LEAST + 1)] == [True] * HEDGES_AT_LEAST + [False]
    for _ in range(2000):
        hedges.count_request()
    assert sum(hedges.take_from_budget() for _ in range(200)) == 100 - HEDGES_AT_LEAST
    clock.now += PERIOD_S - 1
    assert not hedges.take_from_budget()
    clock.now += 1
    assert sum(hedges.take_from_budget() for _ in range(200)) == HEDGES_AT_LEAST


async def test_a_hung_request_is_answered_by_its_second_copy_and_keeps_no_place(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang"])))
    answer = await front.predict(b"again", headers={"x-request-id": "lost-1"})
    assert answer.status_code == 200
    copies = len(front.server.seen)
    assert copies >= 2  # one more where a busy machine makes the second copy late, too
    assert [seen.body for seen in front.server.seen] == [b"again"] * copies
    assert front.gateway.traffic("digits").limit.running == 0
    await asyncio.sleep(0)
    assert front.backend.upstream is not None
    assert await front.backend.upstream.drained(1)
    assert (counted(front, "hedges"), counted(front, "hedge_wins"), counted(front, "retries")) == (copies - 1, 1, 0)
    assert "lost-1 digits hedged" in caplog.text


async def test_copies_that_hang_as_well_are_followed_by_others_up_to_the_limit(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang"] * (hedging.COPIES_MAX - 1))))
    assert (await front.predict()).status_code == 200
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang"] * 100)), timeout_s=5)
    assert (await front.predict()).status_code == 504
    assert len(front.server.seen) <= hedging.COPIES_MAX
    assert front.gateway.traffic("digits").limit.running == 0


async def test_the_first_copy_may_still_win_and_a_copy_that_fails_spoils_nothing(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failure in ("dead", "drop", "full"):
        for _ in range(5):
            front = await hedged(make_front, monkeypatch, StandIn(script=deque(["slow", failure, failure]), slow_s=2.0))
            assert (await front.predict()).status_code == 200, failure
            if counted(front, "hedges"):  # else the machine stood still, and the first copy was answered by then
                break
        assert counted(front, "hedges") >= 1
        assert counted(front, "hedge_wins") <= 1


async def test_what_goes_alone_and_is_late_is_sent_again(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "LATE_S", 0.1)
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["dead", "hang"])))
    assert (await front.predict()).status_code == 200
    assert len(front.server.seen) >= 3  # one more where a busy machine makes the first copy late, too


@pytest.mark.parametrize("off", ["gateway", "model"])
async def test_no_copy_where_hedging_is_off(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang"])), timeout_s=2, hedge=off != "gateway")
    if off == "model":
        front.gateway.traffic("digits").repeatable = False
    assert (await front.predict()).status_code == 504
    assert len(front.server.seen) <= 1


async def test_while_nothing_is_answered_one_request_finds_out_for_all(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = StandIn(script=deque(["hang"] * 6))
    front = await hedged(make_front, monkeypatch, server, in_flight=6, queued=0, timeout_s=30)
    answers = await asyncio.gather(*[front.predict(b"%d" % i) for i in range(6)])
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [answer.headers["x-slotwise-sent"] for answer in answers] == ["hedged"] * 6
    assert len(front.server.seen) >= 12  # more where a busy machine makes a second copy late, too
    assert front.server.seen[6].body == front.server.seen[0].body


async def test_no_copy_while_a_worker_ends_and_the_server_has_not_said_so(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["slow"]), slow_s=1.5))
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ending = front.backend.copies("digits").worker_ends
    monkeypatch.setattr(ending, "_clock", lambda: 100.0)
    ending.follow([worker.pid, 0, 2**22])
    assert not ending.just_now()
    worker.kill()
    while not ending.just_now():  # a zombie, of which only the system knows
        await asyncio.sleep(0.01)
    assert (await front.predict()).status_code == 200
    worker.wait()
    assert len(front.server.seen) == 1
    monkeypatch.setattr(ending, "_clock", lambda: 100.0 + NOTICE_S)
    assert not ending.just_now()


async def test_no_copy_while_earlier_requests_are_answered(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(takes_s=(0.02, 0.03), gathers=2), in_flight=32, queued=0)
    front.backend.copies("digits").hedging.late_s = 0.15  # the queue takes longer, but it moves
    answers = await asyncio.gather(*[front.predict(b"%d" % i) for i in range(32)])
    assert [answer.status_code for answer in answers] == [200] * 32
    assert len(front.server.seen) <= 40


async def test_a_busy_server_is_not_asked_again_at_once(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front(StandIn(script=deque(["full"])))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(race.asyncio, "sleep", noted)
    assert (await front.predict()).status_code == 200
    assert race.BUSY_PAUSE_S in pauses


async def test_nothing_is_hedged_while_a_busy_server_rests(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["full"] * 10)))
    front.backend.copies("digits").hedging.late_s = 2.0  # a stand-in on a busy machine may take longer than the usual 500 ms
    monkeypatch.setattr(race, "BUSY_PAUSE_S", 3.0)
    assert (await front.predict()).status_code == 503
    assert len(front.server.seen) == 2
    assert counted(front, "hedges") == 0


async def test_a_model_that_is_not_known_yet_is_not_hedged(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang"])), timeout_s=2)
    for _ in range(RANK_EVERY):
        front.backend.copies("other").hedging.record_answer(0.01)
    assert (await front.predict(model="nosuch")).status_code == 504
    assert len(front.server.seen) <= 1


async def test_one_request_in_fifty_hangs_and_none_is_lost(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(takes_s=(0.01, 0.04), hang_every=50), in_flight=16, queued=0)
    statuses: list[int] = []

    async def client() -> None:
        for _ in range(100):
            statuses.append((await front.predict()).status_code)

    started = time.monotonic()
    await asyncio.gather(*[client() for _ in range(12)])
    periods = 1 + (time.monotonic() - started) // PERIOD_S
    assert statuses == [200] * 1200  # also those that hung, whom only another copy can answer
    assert len(front.server.seen) <= len(statuses) + periods * max(HEDGES_AT_LEAST, HEDGED_SHARE * len(statuses))
    assert counted(front, "hedge_wins") > 0
