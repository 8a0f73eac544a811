"""A share of the requests goes to another archive; what it fails at, or has no place for, the old one answers."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from slotwise.backends.catalog import ModelCard
from slotwise.backends.exchange import Asleep, BackendAnswer, BackendRequest, NotLoaded, Overloaded, ReadFor, Refused
from slotwise.backends.request_way import RequestWay
from slotwise.errors import SlotwiseError
from slotwise.frontend.admission.key_rates import AccessKey
from slotwise.frontend.forward import Forward
from slotwise.frontend.http.app import build_app
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.rollout import canary
from slotwise.frontend.rollout.canary import Canary
from slotwise.frontend.rollout.canary_windows import LEAST_TIMES, Comparison
from slotwise.frontend.rollout.record import RolloutRecord, interrupted, load_all, need_none, only_one
from slotwise.server.processes import start_time
from tests.support.hedges import Clock

from .conftest import Front, MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


OTHERS = AccessKey("others", "", models=("captions",))


def wanted(percent: float, model: str = "digits", **given: Any) -> RolloutRecord:
    pid = os.getpid()
    usual: dict[str, Any] = {"name": "default", "pid": pid, "started": start_time(pid), "window_s": 60.0}
    return RolloutRecord(**{**usual, "model": model, "new": f"{model}--new", "percent": percent, **given})


async def fronted(make_front: MakeFront, percent: float, script: list[str], **given: Any) -> Front:
    options = {key: given.pop(key) for key in ("in_flight", "queued") if key in given}
    server = StandIn(models={"digits": 1, "digits--new": 1}, script=deque(script), batch_size=64)
    front = await make_front(server, **options)
    front.gateway.rollouts.follow([wanted(percent, **given)])
    for model in server.models:  # of archives that nobody can read it is not known
        front.gateway.traffic(model).repeatable = True
    return front


def asked(front: Front) -> list[str]:
    return [seen.target.split("/")[2] for seen in front.server.seen]


def side(front: Front, which: canary.Which) -> tuple[int, int, int]:
    found = front.gateway.rollouts.by_model["digits"].comparison._sides[which]
    return found.requests, found.errors, found.refused


@pytest.mark.parametrize("behind", [False, True])  # a host of ours is, which a gateway of its own process asks by HTTP
@pytest.mark.parametrize(
    "refusal", [Overloaded(503, "the queue is full"), Overloaded(504, "too late"), Refused(429, "none is free")]
)
async def test_what_got_no_place_is_no_failure_of_an_archive(refusal: Refused, behind: bool) -> None:
    outcome = BackendAnswer(refusal.status, refusal.headers(), b"") if behind else refusal

    async def send(request: BackendRequest) -> BackendAnswer:
        if request.model != "digits--new":
            return BackendAnswer(200, [], b"")
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    rollout = Canary(wanted(100))
    answer = await rollout.answer(BackendRequest("digits", 0.0, "id", "/predictions/digits"), send)
    assert answer.status == 200
    counted = rollout.comparison._sides["new"]
    assert (counted.requests, counted.errors, counted.refused) in [(0, 0, 0), (1, 0, 1)]
    rollout._count("new", outcome, 0.1)
    assert (counted.errors, counted.refused >= 1) == (0, True)


@pytest.mark.parametrize("absence", [Refused(404, "there is no such model"), NotLoaded(), BackendAnswer(404, [], b"")])
@pytest.mark.parametrize("missing", ["digits", "digits--new"])
async def test_while_one_of_the_two_is_not_there_the_other_answers(missing: str, absence: BackendAnswer | Refused) -> None:
    async def send(request: BackendRequest) -> BackendAnswer:
        if request.model != missing:
            return BackendAnswer(200, [], request.model.encode())
        if isinstance(absence, Refused):
            raise absence
        return absence

    one = BackendRequest("digits", 0.0, "id", "/predictions/digits")
    answer = await Canary(wanted(0 if missing == "digits" else 100)).answer(one, send)
    assert (answer.status, answer.body) == (200, b"digits" if missing == "digits--new" else b"digits--new")


@pytest.mark.parametrize("missing", [False, True])  # the old archive
async def test_whoever_has_the_request_is_told_that_its_client_has_gone(missing: bool) -> None:
    left, old = list[str](), Canary(wanted(0 if missing else 100))

    async def send(request: BackendRequest) -> BackendAnswer:
        request.leave = lambda: left.append(request.model)
        if missing and request.model == "digits":
            return BackendAnswer(404, [], b"")
        one.leave()
        return BackendAnswer(200, [], b"")

    one = BackendRequest("digits", 0.0, "id", "/predictions/digits")
    await old.answer(one, send)
    assert left == ["digits--new"]


@pytest.mark.parametrize(("key", "shown"), [(None, ["digits"]), (AccessKey("all", ""), ["digits"]), (OTHERS, [])])
async def test_a_rollout_is_shown_also_while_its_model_is_not_there(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, key: AccessKey | None, shown: list[str]
) -> None:
    """Else `slotwise rollout`, which follows it there, could not finish what it has begun."""
    front = await make_front(StandIn(models={"digits--new": 0}))
    front.gateway.rollout_records = lambda: (wanted(100, phase="replacing"),)
    if key is not None:
        monkeypatch.setattr(front.gateway, "keys", SimpleNamespace(find=lambda headers: key))
    transport = httpx.ASGITransport(build_app(front.gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        state = (await client.get("/status")).json()
    assert [one["model"] for one in state["rollouts"]] == shown


@pytest.mark.parametrize("late", [False, True])
async def test_the_copy_of_a_shadow_is_no_part_of_its_requests_way(make_front: MakeFront, late: bool) -> None:
    """Who looks at a way takes its last batch for the one that its answer came from: of another, nobody has asked so.

    late: nothing of the request was noted, since it is not sampled and nothing has gone wrong.
    """
    gateway = (await fronted(make_front, 0, [])).gateway
    ways, shadowed, both = list[tuple[str, RequestWay | None]](), Canary(wanted(100, shadow=True)), asyncio.Event()
    way = RequestWay()

    async def send(request: BackendRequest) -> BackendAnswer:
        if request.model != "digits":
            request.note("its worker ended")
        ways.append((request.model, request.way))
        if len(ways) == 2:
            both.set()
        return BackendAnswer(200, [], b"")

    whole = InferenceRequest("digits", 0.0, "id", "/predictions/digits", gateway=gateway, seen=way, way=None if late else way)
    await shadowed.answer(whole, send)
    await asyncio.wait_for(both.wait(), 10)
    assert ways == [("digits", None if late else way), ("digits--new", None)]
    assert way.notes == ()


async def test_the_share_is_of_the_request_ids_and_a_larger_one_holds_the_smaller(make_front: MakeFront) -> None:
    front = await fronted(make_front, 10, [])
    shares = {}
    for percent in (10, 50):
        front.gateway.rollouts.follow([wanted(percent, step=percent)])
        front.server.seen.clear()
        await asyncio.gather(*[front.predict(headers={"x-request-id": f"id-{i}"}) for i in range(100)])
        shares[percent] = {seen.headers["x-request-id"] for seen in front.server.seen if "--new" in seen.target}
    assert shares[10] < shares[50]
    assert len(shares[10]) < 25 < len(shares[50]) < 75


async def test_a_gateway_that_counts_anew_in_the_same_process_is_told_apart() -> None:
    """As one that takes another's place in a host of ours: else its first windows would pass for some that were seen."""
    one, other = (Canary(wanted(50)).shown() for _ in range(2))
    assert (one["owner"], one["counted_by"]) != (other["owner"], other["counted_by"])


@pytest.mark.parametrize("percent", [0.004, 1, 10, 50, 95, 99.99])
async def test_both_groups_of_a_comparison_are_equally_large(make_front: MakeFront, percent: float) -> None:
    front = await make_front()
    found = Canary(wanted(percent))
    groups: dict[str | None, set[str]] = {"old": set(), "new": set(), None: set()}
    for number in range(40_000):
        request = InferenceRequest("digits", 0.0, str(number), gateway=front.gateway)
        group = found._group(request)
        groups[group].add(request.identity)
        assert group is None or found.chosen(request) == (group == "new")
    few = 40_000 * min(percent, 100 - percent) / 100
    assert abs(len(groups["old"]) - few) < 4 * few**0.5 + 5
    assert abs(len(groups["new"]) - few) < 4 * few**0.5 + 5


async def test_a_5xx_of_the_new_archive_is_answered_by_the_old_one(make_front: MakeFront) -> None:
    front = await fronted(make_front, 50, ["fault", "answer", "died", "died", "answer", "bad"])
    mine = {"x-request-id": next(str(i) for i in range(99) if canary.zlib.crc32(str(i).encode()) % 10_000 < 5000)}
    assert (await front.predict(headers=mine)).status_code == 200
    assert asked(front) == ["digits--new", "digits"]
    assert (await front.predict(headers=mine)).status_code == 200  # a killer of the new archive is none of the old one's
    assert asked(front)[2:] == ["digits--new", "digits--new", "digits"]
    assert (await front.predict(headers=mine)).status_code == 400  # the client's own fault
    assert asked(front)[5:] == ["digits--new"]
    assert side(front, "new") == (3, 2, 0)


async def test_a_request_that_the_new_archive_has_no_place_for_is_answered_by_the_old_one_and_counted(
    make_front: MakeFront,
) -> None:
    front = await fronted(make_front, 50, [], in_flight=2, queued=0)
    front.server.gate = asyncio.Event()
    ids = [str(i) for i in range(99) if canary.zlib.crc32(str(i).encode()) % 10_000 < 5000][:4]
    waiting = [asyncio.create_task(front.predict(headers={"x-request-id": each})) for each in ids]
    while len(front.server.seen) < 4:
        await asyncio.sleep(0.01)
    front.server.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 4
    assert sorted(asked(front)) == ["digits", "digits", "digits--new", "digits--new"]
    assert side(front, "new") == (4, 0, 2)


async def test_while_one_of_both_is_not_there_the_other_answers(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, [], phase="replacing")
    del front.server.models["digits"]
    front.gateway.rollout_records = lambda: [wanted(100, phase="replacing")]
    await front.gateway.refresh(0)
    assert front.gateway.model_ready("digits")  # for the protocols and /ready it is there
    assert (await front.predict()).status_code == 200
    front.gateway.rollouts.follow([wanted(0, phase="comparing", interrupted=True)])
    assert (await front.predict()).status_code == 200
    front.server.models = {"digits": 1}
    front.gateway.rollouts.follow([wanted(100, phase="replacing", interrupted=True)])
    assert (await front.predict()).status_code == 200
    front.server.models = {}
    assert (await front.predict()).status_code == 404


async def became(record: RolloutRecord, there: str, ours: bool, **given: Any) -> tuple[int, list[str]]:
    """The status of a request while one of both is there, and which were asked. ours: our own host refuses the other."""
    models = list[str]()

    async def send(request: BackendRequest) -> BackendAnswer:
        models.append(request.model)
        if request.model == there:
            return BackendAnswer(200, [], b"")
        if ours:
            raise Refused(404, "there is no such model")
        return BackendAnswer(404, [], b"")

    try:
        answer = await Canary(record).answer(BackendRequest("digits", 0.0, "id", "/predictions/digits", **given), send)
        return answer.status, models
    except Refused as refused:
        return refused.status, models


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    ("there", "record"),
    [
        ("digits", wanted(100)),
        ("digits--new", wanted(0, interrupted=True)),
        ("digits", wanted(100, phase="replacing", interrupted=True)),
        ("digits--new", wanted(0, phase="leaving")),
    ],
)
async def test_while_one_of_both_is_not_there_the_other_answers_on_whichever_server(
    there: str, record: RolloutRecord, ours: bool
) -> None:
    assert (await became(record, there, ours))[0] == 200
    assert (await became(record, "neither", ours))[0] == 404


@pytest.mark.parametrize("status", [400, 404, 429])
@pytest.mark.parametrize("record", [wanted(0), wanted(100), wanted(100, phase="replacing")])
async def test_a_handlers_own_error_is_its_clients_answer(record: RolloutRecord, status: int) -> None:
    """On our own host it is known that a worker gave it, also where its headers do not say so: behind a guard."""
    models = list[str]()

    async def send(request: BackendRequest) -> BackendAnswer:
        models.append(request.model)
        return BackendAnswer(status, [], b"its own words", from_worker=True)

    answer = await Canary(record).answer(BackendRequest("digits", 0.0, "id", "/predictions/digits"), send)
    assert (answer.status, models) == (status, ["digits--new" if record.percent else "digits"])


@pytest.mark.parametrize("ours", [True, False])
async def test_a_stream_goes_to_the_new_archive_only_while_the_old_one_is_replaced_or_is_not_there(ours: bool) -> None:
    """What was sent cannot be taken back. While it is replaced, no stream keeps the old one busy for ever."""
    stream: Any = object()
    for record, there, asked_models in (
        (wanted(100), "digits", ["digits"]),
        (wanted(100, shadow=True), "digits", ["digits"]),
        (wanted(100, phase="replacing"), "digits--new", ["digits--new"]),
        (wanted(0, interrupted=True), "digits--new", ["digits", "digits--new"]),
        (wanted(100, phase="replacing", interrupted=True), "digits", ["digits--new", "digits"]),
    ):
        assert await became(record, there, ours, pieces=stream) == (200, asked_models)

    async def broken(request: BackendRequest) -> BackendAnswer:
        assert request.model == "digits--new"  # not again by the old one: some of it may have been sent
        raise Refused(500, "in the middle")

    with pytest.raises(Refused, match="in the middle"):
        await Canary(wanted(100, phase="replacing", interrupted=True)).answer(
            BackendRequest("digits", 0.0, "id", "/predictions/digits", pieces=stream), broken
        )


async def test_a_stream_is_part_of_a_roll_out(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await fronted(make_front, 100, [], phase="replacing")
    names = list[str]()

    async def answer(request: BackendRequest) -> BackendAnswer:
        names.append(request.model)
        return BackendAnswer(200, [], b"")

    async def never() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(front.backend, "answer", answer)
    stream: Any = object()
    until = asyncio.get_running_loop().time() + 60
    whole = InferenceRequest("digits", until, "id", "/predictions/digits", gateway=front.gateway, pieces=stream)
    await Forward(front.gateway)._answer(whole, never)
    assert names == ["digits--new"]


@pytest.mark.parametrize("shadow", [False, True])
async def test_what_was_read_for_the_old_archive_goes_to_the_new_one_only_where_that_wants_the_same(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, shadow: bool
) -> None:
    front = await fronted(make_front, 100, [], shadow=shadow)
    found = front.gateway.rollouts.by_model["digits"]
    inputs = [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]
    for takes, reached, unsuited in (("picture", {"digits", "digits--new"}, 0), ("text", {"digits"}, 1)):
        cards = {("digits", ""): ModelCard("picture"), ("digits--new", ""): ModelCard(takes)}
        monkeypatch.setattr(front.gateway, "_cards", cards)
        front.server.seen.clear()
        assert (await front.client.post("/v2/models/digits/infer", json={"inputs": inputs})).status_code == 200
        while found._copies:
            await asyncio.sleep(0.001)
        assert set(asked(front)) == (reached if shadow else {"digits--new"} & reached or {"digits"})
        assert {seen.body for seen in front.server.seen} == {b'{"b64": "aGk="}'}
        assert found.shown()["unsuited"] == unsuited


Answer = Callable[[BackendRequest], BackendAnswer]


async def infer(front: Front, identity: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    """V2's reply to a request of six records, which both archives take alike."""

    async def answered(request: BackendRequest) -> BackendAnswer:
        await asyncio.sleep(0)
        return answer(request)

    monkeypatch.setattr(front.backend, "answer", answered)
    monkeypatch.setattr(front.gateway, "_cards", {(name, ""): ModelCard("text") for name in ("digits", "digits--new")})
    inputs = [{"name": "x", "shape": [6], "datatype": "BYTES", "data": [str(i) for i in range(6)]}]
    reply = await front.client.post("/v2/models/digits/infer", json={"inputs": inputs}, headers={"x-request-id": identity})
    return reply.status_code, reply.json()


def by_name(request: BackendRequest) -> BackendAnswer:
    return BackendAnswer(200, [], request.model.encode(), from_worker=True)


OF_OLD, OF_NEW = ("1.0", ["digits"] * 6), ("2.0", ["digits--new"] * 6)


def said(reply: dict[str, Any]) -> tuple[str, list[str]]:
    return reply["model_version"], reply["outputs"][0]["data"]


async def test_all_records_of_a_request_are_answered_by_one_archive_which_the_reply_names(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, seen = await fronted(make_front, 50, [], versions=("1.0", "2.0")), list[tuple[str, list[str]]]()
    for i in range(12):
        status, reply = await infer(front, f"id-{i}", by_name, monkeypatch)
        assert status == 200
        seen.append(said(reply))
    assert all(each in (OF_OLD, OF_NEW) for each in seen)
    assert OF_OLD in seen
    assert OF_NEW in seen


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("moved", [False, True])
async def test_records_that_two_archives_have_answered_are_all_asked_for_again_where_they_may_be(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, repeatable: bool, moved: bool
) -> None:
    """The new archive has no place for one of them, or a step of the roll-out comes in between."""
    front, asked_models = await fronted(make_front, 100, [], versions=("1.0", "2.0")), list[str]()
    front.gateway.traffic("digits--new").repeatable = repeatable

    def answer(request: BackendRequest) -> BackendAnswer:
        asked_models.append(request.model)
        if len(asked_models) == 3:
            if not moved:
                raise Refused(429, "the queue is full")
            front.gateway.rollouts.follow([wanted(0, step=1, versions=("1.0", "2.0"))])
        return by_name(request)

    monkeypatch.setattr(front.gateway.traffic("digits").limit, "in_flight_max", 1)
    status, reply = await infer(front, "id", answer, monkeypatch)
    if repeatable:
        assert (status, said(reply)) == (200, OF_OLD)
    else:
        assert status == 500
        assert "must not be sent twice" in reply["error"]
        assert len(asked_models) < 8


async def test_nothing_that_the_new_archive_would_misread_goes_there_though_the_old_one_is_gone() -> None:
    read = ReadFor("1.0", lambda card: False)
    assert await became(wanted(100), "digits", True, read_for=read) == (200, ["digits"])
    assert await became(wanted(100), "digits--new", True, read_for=read) == (503, ["digits"])
    assert await became(wanted(100, phase="replacing"), "digits", True, read_for=read) == (503, [])
    copy = BackendRequest("digits", 0.0, read_for=ReadFor("1.0", lambda card: True), target="/predictions/digits").to_model(
        "other"
    )
    assert copy.read_for is not None
    assert (copy.read_for.version, copy.read_for.fits(None)) == ("", True)


async def test_a_roll_outs_step_holds_once_it_is_known_what_the_new_archive_takes(make_front: MakeFront) -> None:
    """The server was looked at a moment ago, and had another archive of that name then."""
    front = await make_front(StandIn(models={"digits": 1}))
    front.server.models["digits--new"] = 1
    front.gateway.rollout_records = lambda: (wanted(50),)
    await front.gateway.refresh(60)
    assert front.gateway.rollouts.by_model["digits"].record.percent == 50
    assert "digits--new" in front.gateway.models
    looks = front.backend.looks
    await front.gateway.refresh(60)
    assert front.backend.looks == looks


async def test_nothing_goes_to_the_old_archive_while_it_is_replaced(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, ["fault"], phase="replacing", versions=("1.0", "2.0"))
    assert (await front.predict()).status_code == 500
    assert (await front.client.post("/predictions/digits/1.0", content=b"x")).status_code == 503
    assert asked(front) == ["digits--new"]


@pytest.mark.parametrize(
    ("versions", "version", "reached"),
    [
        (("1.0", "2.0"), "1.0", {"digits"}),
        (("1.0", "2.0"), "2.0", {"digits--new"}),
        (("1.0", "2.0"), "3.0", {"digits"}),  # the server says that there is none
        (("1.0", "1.0"), "1.0", {"digits", "digits--new"}),  # both are what is asked for
    ],
)
async def test_a_version_that_is_named_is_what_is_asked(
    make_front: MakeFront, versions: tuple[str, str], version: str, reached: set[str]
) -> None:
    front = await fronted(make_front, 50, [], versions=versions)
    for _ in range(30):
        assert (await front.client.post(f"/predictions/digits/{version}", content=b"x")).status_code == 200
    assert set(asked(front)) == reached
    assert all(seen.target.endswith(f"/{version}") for seen in front.server.seen)
    counted = side(front, "old")[0] + side(front, "new")[0]
    assert counted == (30 if len(reached) == 2 else 0)


async def test_a_shadow_gets_copies_and_nobody_its_answers(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, ["answer", "answer", "answer", "fault"], shadow=True)
    found = front.gateway.rollouts.by_model["digits"]
    for _ in range(2):
        assert (await front.predict()).status_code == 200
        while found._copies:
            await asyncio.sleep(0.001)
    assert asked(front) == ["digits", "digits--new"] * 2
    assert (found.compared, found.differing) == (2, 1)
    assert (side(front, "old"), side(front, "new")) == ((2, 0, 0), (2, 1, 0))


NOT_TWICE = Refused(500, "the worker ended while it had this request")


@pytest.mark.parametrize("ours", [False, True])  # whether the archive that says so is the new one
@pytest.mark.parametrize(
    ("failure", "taken", "models"),
    [
        (NOT_TWICE, True, ["digits--new"]),
        (BackendAnswer(500, [], b""), False, ["digits--new"]),
        (BackendAnswer(503, [], b""), False, ["digits--new"]),  # of a server behind: it may be its second try
        (Refused(503, "its model is unloaded"), True, ["digits--new"]),
        (Refused(503, "there is no worker"), False, ["digits--new", "digits"]),
        (Refused(429, "the queue is full"), False, ["digits--new", "digits"]),
        (Refused(404, "there is no such model"), False, ["digits--new", "digits"]),
    ],
)
async def test_what_must_not_be_sent_twice_goes_to_the_old_archive_only_where_no_worker_has_had_it(
    ours: bool, failure: BackendAnswer | Refused, taken: bool, models: list[str]
) -> None:
    asked_models = list[str]()

    async def send(request: BackendRequest) -> BackendAnswer:
        asked_models.append(request.model)
        if request.model == "digits":
            return BackendAnswer(200, [], b"")
        request.taken_at = 5.0 * taken
        request.repeatable &= not ours
        if isinstance(failure, Refused):
            raise failure
        return failure

    with suppress(Refused):
        await Canary(wanted(100)).answer(BackendRequest("digits", 0.0, "id", "/predictions/digits", repeatable=ours), send)
    assert asked_models == models


async def test_a_shadow_gets_no_copy_of_what_must_not_be_sent_twice(make_front: MakeFront) -> None:
    front = await fronted(make_front, 100, [], shadow=True)
    found = front.gateway.rollouts.by_model["digits"]
    for model in ("digits", "digits--new"):
        front.gateway.traffic(model).repeatable = False
        assert (await front.predict()).status_code == 200
        assert not found._copies
        front.gateway.traffic(model).repeatable = True
    assert (asked(front), found.shown()["uncopied"]) == (["digits"] * 2, 2)


async def test_a_new_archive_that_sleeps_between_its_few_requests_is_no_worse_for_that() -> None:
    found = Canary(wanted(50, window_s=0.0))

    async def send(request: BackendRequest) -> BackendAnswer:
        if request.model != "digits":
            raise Asleep(retry_after_s=5)
        return BackendAnswer(200, [], b"")

    for i in range(20):
        assert (await found.answer(BackendRequest("digits", 0.0, f"id-{i}", "/predictions/digits"), send)).status == 200
    assert {window["new"]["errors"] for window in found.shown()["windows"]} == {0}


async def test_two_models_have_a_roll_out_each(make_front: MakeFront) -> None:
    server = StandIn(models=dict.fromkeys(("digits", "digits--new", "other", "other--new"), 1))
    front = await make_front(server)
    front.gateway.rollouts.follow([wanted(50), wanted(50, "other")])
    for _ in range(20):
        assert (await front.predict()).status_code == 200
    found = {shown["model"]: shown for shown in front.gateway.status()["rollouts"]}
    assert found.keys() == {"digits", "other"}
    other = front.gateway.rollouts.by_model["other"].comparison._sides
    assert (other["old"].requests, other["new"].requests) == (0, 0)
    assert sum(side(front, which)[0] for which in ("old", "new")) == 20  # type: ignore[arg-type]
    kept = front.gateway.rollouts.by_model["other"]
    front.gateway.rollouts.follow([wanted(10, "other", step=1)])
    assert front.gateway.rollouts.by_model == {"other": kept}


@pytest.fixture
def home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))


@pytest.mark.usefixtures("home")
async def test_who_wrote_a_record_and_has_ended_wants_the_archive_that_is_safe() -> None:
    assert load_all("default") == ()
    need_none("default")
    wanted(10).save()
    wanted(10, "a/b", after={"archive": "b.mar"}).save()
    assert [(record.model, record.percent) for record in load_all("default")] == [("a/b", 10), ("digits", 10)]
    with pytest.raises(SlotwiseError, match="is going on"):
        need_none("default")
    for model, phase, percent in (("digits", "replacing", 100), ("a/b", "comparing", 0)):
        replace(wanted(10, model, phase=phase), started=1.0).save()
        found = {record.model: record for record in interrupted("default")}
        assert found[model].percent == percent
    for record in interrupted("default"):
        record.forget()
    assert load_all("default") == ()


@pytest.mark.usefixtures("home")
async def test_one_model_has_one_roll_out_at_a_time() -> None:
    refused = pytest.raises(SlotwiseError, match="another roll-out of digits is going on")
    with only_one("default", "digits"), only_one("default", "other"), refused, only_one("default", "digits"):
        pass
    with only_one("default", "digits"):
        pass


async def test_windows_are_closed_in_time_and_begin_anew_with_a_step() -> None:
    clock = Clock()
    rollout = Canary(wanted(10), clock)
    rollout.comparison.answered("new", 0.5, timed=False)
    rollout.comparison.failed("old")
    assert rollout.shown()["windows"] == []
    clock.now += 60
    empty = {"refused": 0, "slow": [0, 0, 0]}
    old = {"requests": 1, "errors": 1, "ms": [0, 0, 0], **empty}
    new = {"requests": 1, "errors": 0, "ms": [500.0] * 3, **empty}
    window = {"number": 1, "refusals": True, "old": old, "new": new}
    assert rollout.shown()["windows"] == [window]
    rollout.comparison.failed("old")
    rollout.follow(wanted(50, step=1))
    clock.now += 60
    assert rollout.shown()["windows"] == [window]


def test_slow_is_what_takes_longer_than_the_old_archives_times_of_before_with_the_tolerance() -> None:
    clock = Clock()
    found = Comparison(1.0, clock)
    for _ in range(LEAST_TIMES):
        found.answered("old", 1.0, timed=True)
        found.answered("new", 9.0, timed=True)
    for _ in range(2):
        clock.now += 1
        found.turn(refusals=True)
        for which, seconds in (("old", 1.0), ("old", 1.01), ("new", 1.1), ("new", 1.11)):
            found.answered(which, seconds, timed=True)  # type: ignore[arg-type]
        found.answered("new", 9.0, timed=False)
    assert [window["new"]["slow"] for window in found.windows] == [[0] * 3, [1] * 3]
    assert found.windows[1]["old"]["slow"] == [1] * 3


def test_answers_that_differ_in_the_third_digit_are_the_same() -> None:
    one, other, third, text = (
        BackendAnswer(200, [], body)
        for body in (*(b'{"p": {"7": %f}, "x": [1, "a"]}' % p for p in (0.98499, 0.98501, 0.9)), b"no JSON")
    )
    assert canary._same(one, other)
    assert not canary._same(one, third)
    assert not canary._same(one, text)
    assert canary._same(text, text)
