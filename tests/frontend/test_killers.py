"""Requests whose worker died: the innocent are answered, one at a time; the one that did it is refused and remembered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from functools import partial

import pytest

from slotwise.backends.exchange import Refused, digest_of
from slotwise.frontend.admission import killers
from slotwise.frontend.admission.killers import ALLOWED, Killers
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.inference_request import InferenceRequest
from tests.support.errors import error
from tests.support.hedges import Clock, counted, hedged

from .conftest import Front, MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


def test_a_body_is_remembered_for_its_model_and_for_a_while() -> None:
    clock = Clock()
    known = Killers(clock)
    known.remember("digits", digest_of("digits", b"killer"), "somebody")
    with pytest.raises(Refused) as refused:
        known.refuse_body("digits", b"killer")
    assert refused.value.status == 422
    known.refuse_body("digits", b"killer.")
    known.refuse_body("captions", b"killer")
    clock.now += killers.BODY_S
    known.refuse_body("digits", b"killer")


def test_a_sender_of_several_is_refused_for_the_rest_of_the_minute() -> None:
    clock = Clock()
    known = Killers(clock)
    for i in range(ALLOWED):
        known.refuse_sender("digits", "somebody")
        known.remember("digits", digest_of("digits", b"killer %d" % i), "somebody")
        clock.now += 10
    with pytest.raises(Refused) as refused:
        known.refuse_sender("digits", "somebody")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 50)
    known.refuse_sender("digits", "somebody else")
    known.refuse_sender("captions", "somebody")
    clock.now += 50
    known.refuse_sender("digits", "somebody")


def test_a_sender_whom_nobody_knows_is_never_refused() -> None:
    known = Killers()
    for i in range(ALLOWED):
        known.remember("digits", digest_of("digits", b"killer %d" % i), "")
    known.refuse_sender("digits", "")
    with pytest.raises(Refused):
        known.refuse_body("digits", b"killer 0")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killers, "BODIES", 3)
    monkeypatch.setattr(killers, "SENDERS", 3)
    known = Killers()
    for i in range(9):
        known.remember("digits", digest_of("digits", b"%d" % i), str(i))
    assert (len(known._bodies), len(known._senders)) == (3, 3)
    known.refuse_body("digits", b"5")
    with pytest.raises(Refused):
        known.refuse_body("digits", b"6")


async def test_a_body_is_another_one_for_another_version_or_archive(make_front: MakeFront) -> None:
    """An operator mends the model, and makes what is mended its default."""
    gateway = (await make_front()).gateway
    asks = partial(
        InferenceRequest, "digits", time.monotonic() + 30, gateway=gateway, body=b"killer", target="/predictions/digits"
    )
    asks().convict()
    with pytest.raises(Refused):
        asks().check()
    live, card = gateway.models["digits"], gateway.card("digits")
    gateway.models = {**gateway.models, "digits": replace(live, version="2.0")}
    asks().check()
    gateway.models = {**gateway.models, "digits": live}
    gateway._cards = {**gateway._cards, ("digits", ""): replace(card, content="another archive")}
    asks().check()


async def test_a_request_that_ends_its_worker_twice_is_refused_and_its_body_remembered(make_front: MakeFront) -> None:
    front = await make_front()
    refused = await front.predict(b"killer 1")
    assert (error(refused)["code"], refused.headers["x-slotwise-sent"]) == (500, "alone")
    assert front.server.deaths == {b"killer 1": 2}
    again = await front.predict(b"killer 1")
    assert error(again)["code"] == 422
    assert front.server.deaths == {b"killer 1": 2}
    assert (counted(front, "killers"), counted(front, "alone"), counted(front, "retries")) == (1, 1, 0)
    assert (await front.predict()).status_code == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [("digits/2.0", {}), ("digits?size=3", {}), ("digits", {"content-type": "text/csv"}), ("digits", {"explain": "True"})],
)
async def test_the_same_bytes_with_another_meaning_are_not_refused(
    make_front: MakeFront, path: str, headers: dict[str, str]
) -> None:
    """Where what ends a worker stands in the query, the body may be empty, as everybody's is."""
    front = await make_front(to_model=lambda name: name.decode("latin-1"))
    assert (await front.predict(b"killer")).status_code == 500
    assert (await front.predict(b"killer")).status_code == 422
    other = await front.client.post(f"/predictions/{path}", content=b"killer", headers=headers)
    assert other.status_code == 500  # it was sent, and this stand-in's worker ends on it in any case
    assert front.server.deaths == {b"killer": 4}


async def test_a_third_killer_in_a_minute_closes_the_door_for_its_sender(make_front: MakeFront) -> None:
    front = await make_front()
    for i in range(ALLOWED):
        assert (await front.predict(b"killer %d" % i)).status_code == 500
    refused = await front.predict(b"killer 99")
    assert (error(refused)["code"], int(refused.headers["retry-after"]) > 30) == (429, True)
    assert b"killer 99" not in front.server.deaths


async def test_killers_of_one_model_cost_nobody_at_another(make_front: MakeFront) -> None:
    """All of them come from one address, as behind a proxy."""
    front = await make_front(StandIn(models={"digits": 1, "captions": 1}))
    for i in range(ALLOWED):
        assert (await front.predict(b"killer %d" % i)).status_code == 500
    assert (await front.predict(b"good")).status_code == 429
    assert {(await front.predict(b"%d" % i, "captions")).status_code for i in range(10)} == {200}


@pytest.mark.parametrize(
    "forwarded", [["203.0.113.7"], ["198.51.100.1, 203.0.113.7"], ["198.51.100.1", "203.0.113.7, 127.0.0.1"]]
)
async def test_a_trusted_proxy_says_whose_a_killer_was(make_front: MakeFront, forwarded: list[str]) -> None:
    front = await make_front(trusted_proxies=TrustedProxies(["127.0.0.0/8"]))

    async def predict(body: bytes, addresses: list[str]) -> int:
        headers = [("x-forwarded-for", line) for line in addresses]
        return (await front.predict(body, headers=headers)).status_code

    assert [await predict(b"killer %d" % i, forwarded) for i in range(ALLOWED)] == [500] * ALLOWED
    assert await predict(b"good", forwarded) == 429
    assert await predict(b"good", ["203.0.113.8"]) == 200
    assert await predict(b"good", ["203.0.113.7, 203.0.113.8"]) == 200  # what a client writes itself stands before
    assert await predict(b"good", []) == 200
    assert await predict(b"killer 0", ["203.0.113.8"]) == 422


async def test_nobody_else_is_believed(make_front: MakeFront) -> None:
    front = await make_front()  # who asks is 127.0.0.1
    for i in range(ALLOWED):
        headers = {"x-forwarded-for": f"203.0.113.{i}", "forwarded": f"for=203.0.113.{i}"}
        assert (await front.predict(b"killer %d" % i, headers=headers)).status_code == 500
    assert (await front.predict(b"good", headers={"x-forwarded-for": "203.0.113.99"})).status_code == 429


async def test_a_worker_that_sigkill_ended_may_have_been_an_operators_doing(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["dead", "dead"])))
    answer = await front.predict()
    assert (answer.status_code, answer.headers["x-slotwise-sent"]) == (200, "alone")
    front.server.script.extend(["dead"] * 3)
    assert (await front.predict(b"other")).status_code == 500


async def test_a_worker_that_a_scale_down_ends_is_nobodys_fault(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 3}, script=deque(["taken", "taken"])))
    answer = await front.predict()
    assert (answer.status_code, answer.headers["x-slotwise-sent"]) == (200, "alone")
    front.server.script.extend(["died", "died"])
    assert (await front.predict(b"other")).status_code == 500


async def test_what_dies_is_never_hedged_and_waits_for_nobody_who_is_lost(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await hedged(make_front, monkeypatch, StandIn(script=deque(["hang", "died"])))
    answer = await front.predict()  # the first copy is lost, the hedge's worker dies, and alone it is answered
    assert (answer.status_code, answer.headers["x-slotwise-sent"]) == (200, "alone")
    assert len(front.server.seen) == 3


async def storm(front: Front, clients: int, each: int) -> list[int]:
    """The statuses of innocent requests, among which one client sends the same killer again and again."""
    statuses: list[int] = []
    refused: list[int] = []

    async def innocent(first: int) -> None:
        for i in range(each):
            answer = await front.predict(b"%d" % (first * each + i))
            statuses.append(answer.status_code)

    async def killer() -> None:
        for _ in range(10):
            refused.append((await front.predict(b"killer")).status_code)
            await asyncio.sleep(0.01)

    await asyncio.gather(killer(), *[innocent(i) for i in range(clients)])
    assert refused == [500] + [422] * 9
    return statuses


async def test_the_innocent_of_its_batches_are_answered(make_front: MakeFront) -> None:
    front = await make_front(StandIn(takes_s=(0.001, 0.01), gathers=4), in_flight=16, queued=64, hedge=False)
    statuses = await storm(front, clients=32, each=20)
    assert statuses == [200] * 640
    assert front.server.deaths == {b"killer": 2}
    alone = [batch for batch in front.server.batches if b"killer" in batch]
    assert len(alone) == 2
    assert alone[1] == [b"killer"]


async def test_nothing_else_is_sent_while_one_goes_alone(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["died", "slow"]), slow_s=0.3))
    first = asyncio.create_task(front.predict(b"suspect"))
    while len(front.server.seen) < 2:
        await asyncio.sleep(0.001)
    assert (await front.predict(b"other")).status_code == 200
    assert (await first).status_code == 200
    assert [seen.body for seen in front.server.seen] == [b"suspect", b"suspect", b"other"]
    assert front.server.seen[2].after == 2


async def test_the_deadline_holds_for_whoever_waits_meanwhile(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["died", "hang"])), timeout_s=1)
    suspect, other = await asyncio.gather(front.predict(b"suspect"), front.predict(b"other"))
    assert {suspect.status_code, other.status_code} <= {200, 504}
    assert front.gateway.traffic("digits").limit.running == 0
