"""Requests of several records: let in whole or refused whole, in turn with all, charged once, and gone with their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused
from slotwise.backends.remote.remote_backend import RemoteBackend
from slotwise.client.live_model import LiveModel
from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.http.app import build_app
from slotwise.server.lifecycle import ServerRecord

from .conftest import Front, MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio
PATH = "/v1/models/digits:predict"


def of(count: int, first: int = 0) -> dict[str, Any]:
    """A request of so many records, each of its own."""
    return {"instances": list(range(first, first + count))}


def client(front: Front, address: str = "10.0.0.9") -> httpx.AsyncClient:
    """A client at that address; keys that the gateway was given meanwhile hold for it."""
    transport = httpx.ASGITransport(build_app(front.gateway), raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=90)


async def until(front: Front, running: int, queued: int) -> None:
    limit = front.gateway.traffic("digits").limit
    async with asyncio.timeout(60):
        while (limit.running, limit.queued) != (running, queued):
            await asyncio.sleep(0.005)


def settled(front: Front) -> bool:
    """Whether nothing of any request is left."""
    limit = front.gateway.traffic("digits").limit
    return (limit.running, limit.queued, front.gateway.body_memory.now_bytes) == (0, 0, 0)


async def test_two_requests_of_many_records_at_once_are_answered_in_full(make_front: MakeFront) -> None:
    front = await make_front(StandIn(takes_s=(0.001, 0.01)), hedge=False)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(front.client.post(PATH, json=of(64, 64 * i), timeout=90)) for i in range(4)]
    for one in asked:
        assert one.result().status_code == 200
        assert [said["label"] for said in one.result().json()["predictions"]] == ["7"] * 64
    assert sorted(int(seen.body) for seen in front.server.seen) == list(range(256))
    assert settled(front)


async def test_where_the_server_has_senders_take_turns_all_wait_there_and_of_many_records_two_batches(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteBackend, "takes_turns", True)
    gate = asyncio.Event()
    front = await make_front(StandIn(gate=gate), queued=100)
    singles = [asyncio.create_task(front.predict(b"%d" % i)) for i in range(50)]
    await until(front, 50, 0)
    many = asyncio.create_task(front.client.post(PATH, json=of(60, 100)))
    await until(front, 58, 0)
    traffic = front.gateway.traffic("digits")
    monkeypatch.setattr(traffic, "_waiting", lambda: 51)
    shown = {"in_flight": 7, "queued": 51, "in_flight_max": 8, "queue_max": 100}
    assert traffic.shown() | shown == traffic.shown()
    gate.set()
    assert [(await one).status_code for one in singles] == [200] * 50
    assert len((await many).json()["predictions"]) == 60
    assert sorted(int(seen.body) for seen in front.server.seen) == [*range(50), *range(100, 160)]
    assert settled(front)


@pytest.mark.parametrize("same", [True, False])
async def test_another_server_behind_has_all_records_or_none(make_front: MakeFront, tmp_path: Path, same: bool) -> None:
    """It may have another archive of that version, unless its workers say that it is the same."""
    gate = asyncio.Event()
    front = await make_front(StandIn(gate=gate), in_flight=2)
    if same:
        front.backend.view = replace(front.backend.view, models=with_content(front.backend.view.models))
        await front.gateway.refresh(0)
    (tmp_path / "new").mkdir()
    async with StandIn(name="new") as new:
        asked = asyncio.create_task(front.client.post(PATH, json=of(6)))
        await until(front, 2, 1)
        front.record = new.record(tmp_path / "new")
        await front.gateway.refresh(0)
        gate.set()
        answer = await asked
    assert answer.status_code == 200
    servers = [said["server"] for said in answer.json()["predictions"]]
    assert servers == (["a"] * 2 + ["new"] * 4 if same else ["new"] * 6)
    assert settled(front)


def with_content(models: Callable[[ServerRecord], Sequence[LiveModel]]) -> Callable[[ServerRecord], list[LiveModel]]:
    """The models of which each worker says that it runs one and the same archive."""

    def told(record: ServerRecord) -> list[LiveModel]:
        return [
            replace(live, workers=tuple(replace(worker, got={"archive": "c0ffee"}) for worker in live.workers))
            for live in models(record)
        ]

    return told


@pytest.mark.parametrize("header", ["ts_request_sequence_id", "TS_Request_Sequence_Start"])
async def test_several_records_are_no_request_of_a_sequence(make_front: MakeFront, header: str) -> None:
    """Each would have its header: begin it anew, say, and nobody knows in which order."""
    front = await make_front()
    text = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["aGk=", "aGk="]}]}
    for path, content in ((PATH, of(2)), ("/v2/models/digits/infer", text)):
        answer = await front.client.post(path, json=content, headers={header: "true"})
        assert (answer.status_code, "one by one" in answer.json()["error"]) == (400, True)
    assert front.server.seen == []
    assert (await front.client.post(PATH, json=of(1), headers={header: "true"})).status_code == 200
    assert front.server.seen[0].headers[header.lower()] == "true"
    assert settled(front)


async def test_what_cannot_be_read_is_counted_once(make_front: MakeFront) -> None:
    front = await make_front()
    counted = front.gateway.metrics.registry.get_sample_value
    for path in (PATH, "/v2/models/digits/infer"):
        assert (await front.client.post(path, content=b"[1")).status_code == 400
    assert counted("slotwise_requests_total", {"model": "digits", "status": "400"}) == 2.0
    assert (await front.client.post(PATH, json=of(2))).status_code == 200
    assert counted("slotwise_requests_total", {"model": "digits", "status": "200"}) == 2.0
    assert counted("slotwise_requests_total", {"model": "digits", "status": "400"}) == 2.0


async def test_a_request_that_finds_the_queue_full_is_refused_as_a_whole(make_front: MakeFront) -> None:
    front = await make_front(StandIn(gate=asyncio.Event()), in_flight=2, queued=1)
    asked = [asyncio.create_task(front.client.post(PATH, json=of(9, 9 * i), timeout=90)) for i in range(2)]
    await until(front, running=2, queued=1)
    asked.append(asyncio.create_task(front.predict(b"alone")))
    refused = await front.client.post(PATH, json=of(9, 100))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert front.server.gate
    front.server.gate.set()
    statuses = [(await one).status_code for one in asked]
    assert sorted(statuses) in ([200, 200, 429], [200, 429, 429])
    for one in asked[:2]:
        if one.result().status_code == 200:
            assert [said["label"] for said in one.result().json()["predictions"]] == ["7"] * 9
    assert not [seen for seen in front.server.seen if seen.body.startswith(b"10")]
    assert 'slotwise_sheds_total{model="digits"}' in (await front.client.get("/metrics")).text
    assert settled(front)


@pytest.mark.parametrize("refusal", [Refused(503, "3 requests wait for this model already", 2), Refused(504, "too late")])
async def test_a_request_of_which_the_models_own_queue_does_not_take_all_is_refused_as_a_whole(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, refusal: Refused
) -> None:
    """On our own host job_queue_size may be less than a request's records: nobody gets a part of the answers with 200."""
    front = await make_front(StandIn())
    answered = front.backend.answer

    async def full(request: BackendRequest) -> BackendAnswer:
        if len(front.server.seen) > 4:
            raise refusal
        return await answered(request)

    monkeypatch.setattr(front.backend, "answer", full)
    refused = await front.client.post(PATH, json=of(64), timeout=90)
    assert (refused.status_code, isinstance(refused.json()["error"], str)) == (refusal.status, True)
    assert refused.headers.get("retry-after", "0") == str(refusal.retry_after_s)
    assert settled(front)


async def test_a_request_of_many_records_lets_others_pass(make_front: MakeFront) -> None:
    front = await make_front(StandIn(takes_s=(0.02, 0.02)), in_flight=1, queued=8)
    async with client(front) as other:
        many = [asyncio.create_task(front.client.post(PATH, json=of(20, 20 * i), timeout=90)) for i in range(2)]
        await until(front, running=1, queued=2)
        before = len(front.server.seen)
        assert (await other.post("/predictions/digits", content=b"alone")).status_code == 200
        at = [seen.body for seen in front.server.seen].index(b"alone")
        assert at <= before + 2
        for one in many:
            assert (await one).status_code == 200
    both = [int(seen.body) // 20 for seen in front.server.seen if seen.body != b"alone"]
    assert both[:20].count(0) in (10, 11)  # in turn


async def test_who_fills_the_queue_refuses_nobody_else(make_front: MakeFront) -> None:
    front = await make_front(StandIn(gate=asyncio.Event()), in_flight=2, queued=3)
    async with client(front) as other:
        many = [asyncio.create_task(front.client.post(PATH, json=of(9, 9 * i), timeout=90)) for i in range(3)]
        await until(front, running=2, queued=3)
        alone = asyncio.create_task(other.post("/predictions/digits", content=b"alone"))
        async with asyncio.timeout(60):
            await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().status_code for one in many if one.done()] == [429]
        assert front.server.gate
        front.server.gate.set()
        assert (await alone).status_code == 200
        assert sorted([(await one).status_code for one in many]) == [200, 200, 429]
    assert settled(front)


async def test_a_key_may_send_more_records_than_it_has_left_and_pays_them_off(make_front: MakeFront, tmp_path: Path) -> None:
    key = {"x-api-key": keys.add(tmp_path / "keys.json", "app", requests_per_s=10)}
    front = await make_front()
    front.gateway.keys = KeyFile(tmp_path / "keys.json")
    async with client(front) as guarded:
        answer = await guarded.post(PATH, json=of(640), headers=key)
        assert [said["label"] for said in answer.json()["predictions"]] == ["7"] * 640
        for _ in range(3):
            refused = await guarded.post(PATH, json=of(1), headers=key)
            assert (refused.status_code, 20 <= int(refused.headers["retry-after"]) <= 64) == (429, True)
        assert len(front.server.seen) == 640


async def test_what_is_refused_costs_a_key_nothing_and_what_cannot_be_read_one(make_front: MakeFront, tmp_path: Path) -> None:
    key = {"x-api-key": keys.add(tmp_path / "keys.json", "app", requests_per_s=0.001)}
    front = await make_front(StandIn(gate=asyncio.Event()), in_flight=1, queued=0)
    async with client(front) as guarded:
        busy = asyncio.create_task(guarded.post("/predictions/digits", content=b"busy"))
        await until(front, running=1, queued=0)
        front.gateway.keys = KeyFile(tmp_path / "keys.json")
    async with client(front) as guarded:
        for path in (PATH, "/predictions/digits"):
            refused = await guarded.post(path, json=of(5), headers=key)
            assert (refused.status_code, "queue" in refused.text) == (429, True)
        assert front.server.gate
        front.server.gate.set()
        assert (await busy).status_code == 200
        assert (await guarded.post(PATH, content=b"{", headers=key)).status_code == 400
        refused = await guarded.post(PATH, json=of(1), headers=key)
        assert (refused.status_code, "times a second" in refused.text) == (429, True)


async def test_a_client_that_hangs_up_stops_costing(make_front: MakeFront) -> None:
    front = await make_front(StandIn(gate=asyncio.Event()), in_flight=2, queued=8)
    body, hung_up = json.dumps(of(64)).encode(), asyncio.Event()
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if given:
            return given.pop()
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": PATH}
    scope |= {"raw_path": PATH.encode(), "query_string": b"", "headers": [], "client": ("10.0.0.1", 1), "root_path": ""}
    asked = asyncio.create_task(build_app(front.gateway)(scope, receive, send))
    await until(front, running=2, queued=1)
    hung_up.set()
    await until(front, running=2, queued=0)  # what is at the server keeps its place there
    assert front.server.gate
    front.server.gate.set()
    await asked
    assert len(front.server.seen) == 2
    assert settled(front)


async def test_a_request_whose_time_ends_before_its_last_record_is_none_that_was_answered(make_front: MakeFront) -> None:
    front = await make_front(StandIn(takes_s=(0.2, 0.2)), in_flight=1, queued=8, timeout_s=1.5)
    answer = await front.client.post(PATH, json=of(64), timeout=90)
    assert (answer.status_code, isinstance(answer.json()["error"], str)) == (504, True)
    assert len(front.server.seen) < 64
    assert settled(front)
