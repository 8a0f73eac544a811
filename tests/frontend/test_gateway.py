"""The gateway's own state: readiness, the list of models, following its server from one record to the next."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pytest

from slotwise.frontend.frontend import Gateway
from slotwise.frontend.http.app import build_app

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio


async def test_a_model_that_vanishes_while_the_list_is_read_is_no_dead_server(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 1, "leaving": 1}))
    front.server.vanishing = "leaving"
    await front.gateway.refresh(0)
    assert front.gateway.backend.reachable
    assert list(front.gateway.models) == ["digits"]


async def test_nothing_is_kept_of_a_model_that_is_gone(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 1, "leaving": 1}))
    assert (await front.predict(model="leaving")).status_code == 200
    assert (await front.predict()).status_code == 200
    assert 'model="leaving"' in (await front.client.get("/metrics")).text
    del front.server.models["leaving"]
    await front.gateway.refresh(0)
    text = (await front.client.get("/metrics")).text
    assert "leaving" not in text
    assert 'slotwise_requests_total{model="digits",status="200"} 1.0' in text
    assert front.gateway.traffic("leaving") is front.gateway.traffic("nosuch")


async def test_a_scale_is_no_swap(make_front: MakeFront) -> None:
    front = await make_front()
    assert front.record is not None
    front.record = replace(front.record, overrides={"workers": "2"})
    await front.gateway.refresh(0)
    assert "slotwise_swaps_total 0.0" in (await front.client.get("/metrics")).text


async def test_the_models_come_from_the_servers_live_list(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"digits": 2, "somebodys": 1}))
    digits, other = (await front.client.get("/models")).json()["models"]
    assert (digits["name"], digits["workers"], digits["ready_workers"], digits["batch_size"]) == ("digits", 2, 2, 4)
    assert (digits["in_flight_max"], digits["queue_max"]) == (16, 8)
    assert (other["name"], other["takes"], other["examples"]) == ("somebodys", "file", [])
    front.server.models["new"] = 1
    await front.gateway.refresh(0)
    assert len((await front.client.get("/models")).json()["models"]) == 3


async def test_the_management_api_is_not_proxied(make_front: MakeFront) -> None:
    front = await make_front()
    for method, path in (("POST", "/models?url=x.mar"), ("DELETE", "/models/digits"), ("PUT", "/models/digits")):
        assert (await front.client.request(method, path)).status_code in (404, 405)
    assert (await front.client.get("/models/digits")).status_code == 404
    assert front.server.seen == []


async def test_a_switch_loses_nothing_that_is_in_flight(make_front: MakeFront) -> None:
    front = await make_front(StandIn("old"))
    front.server.gate = asyncio.Event()
    early = [asyncio.create_task(front.predict()) for _ in range(4)]
    while len(front.server.seen) < 4:
        await asyncio.sleep(0.001)
    async with StandIn("new", models={"digits": 3}) as second:
        assert front.record is not None
        front.record = replace(second.record(front.record.state_dir), name="default")
        await front.gateway.refresh(60)
        assert (await front.predict()).json()["server"] == "new"
        status = (await front.client.get("/status")).json()
        assert (status["server"]["pid"], status["leaving"], status["models"][0]["workers"]) == (second.port, 4, 3)
        front.server.gate.set()
        assert {answer.json()["server"] for answer in await asyncio.gather(*early)} == {"old"}
        async with asyncio.timeout(60):
            while (await front.client.get("/status")).json()["leaving"]:
                await asyncio.sleep(0.01)


async def test_what_the_old_server_drops_is_asked_of_the_new_one(make_front: MakeFront) -> None:
    front = await make_front(StandIn("old"))
    front.server.gate = asyncio.Event()
    early = asyncio.create_task(front.predict())
    while not front.server.seen:
        await asyncio.sleep(0.001)
    async with StandIn("new") as second:
        assert front.record is not None
        front.record = second.record(front.record.state_dir)
        await front.gateway.refresh(60)
        await front.server.stop()  # too early: its connections are cut
        assert (await early).json()["server"] == "new"


async def test_a_model_that_a_new_server_has_not_loaded_yet_is_not_unknown(make_front: MakeFront) -> None:
    front = await make_front(StandIn("crashed"))
    assert (await front.predict()).status_code == 200
    assert (await front.predict(model="nosuch")).status_code == 404
    await front.server.stop()
    async with StandIn("again", models={}) as second:
        assert front.record is not None
        front.record = second.record(front.record.state_dir)
        await front.gateway.refresh(60)
        early = await front.predict()
        assert (early.status_code, early.headers["retry-after"]) == (503, "1"), early.text
        assert "not loaded yet" in early.json()["error"]["message"]
        assert (await front.predict(model="nosuch")).status_code == 404
        second.models["digits"] = 1
        await front.gateway.refresh(0)
        assert (await front.predict()).json()["server"] == "again"
        del second.models["digits"]  # unregistered: that was somebody's will
        assert (await front.predict()).status_code == 404


async def test_a_model_that_triton_loads_again_is_not_unknown(make_front: MakeFront) -> None:
    """Where an instance's process has died all of the model is loaded anew, and Triton does not know it meanwhile."""
    front = await make_front()
    assert front.backend.upstream is not None
    front.backend.upstream.record = replace(front.backend.upstream.record, kind="triton")
    del front.server.models["digits"]
    unloaded = await front.predict()
    assert (unloaded.status_code, unloaded.headers.get("retry-after")) == (503, "1"), unloaded.text
    assert (await front.predict(model="nosuch")).status_code == 404
    assert front.backend.look_soon
    await front.gateway.refresh(0)  # it was somebody's will
    assert (await front.predict()).status_code == 404


async def test_the_first_request_finds_a_server(make_front: MakeFront) -> None:
    front = await make_front()
    gateway = Gateway(front.gateway.backend)
    received, sent = iter(["lifespan.startup", "lifespan.shutdown"]), list[str]()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": next(received)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        assert gateway.backend.reachable

    await build_app(gateway)({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_every_answer_is_guarded_and_the_page_asks_nobody_else(make_front: MakeFront) -> None:
    front = await make_front()
    for path in ("/", "/index.html", "/docs", "/models", "/nosuch"):
        answer = await front.client.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] in ("no-cache", "no-store")
    missing = await front.client.get("/nosuch")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, 404)
    assert (await front.client.get("/static/../../app.py")).status_code == 404
    assert (await front.client.get("/examples/digits/..%2fmodel.toml")).status_code == 404


async def test_the_schema_holds_the_routes_that_are_served(make_front: MakeFront) -> None:
    front = await make_front()
    schema = (await front.client.get("/openapi.json")).json()
    assert {"/predictions/{model}", "/caption", "/translation", "/models", "/ready", "/metrics"} <= set(schema["paths"])
    assert "https://" not in json.dumps(schema)


async def test_the_schema_allows_what_is_answered(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={"ants_bees": 1, "my-model": 1}))
    schema = (await front.client.get("/openapi.json")).json()
    paths = schema["paths"]
    model, version, _ = paths["/predictions/{model}/{version}"]["post"]["parameters"]
    for name in ("ants_bees", "my-model"):
        assert (await front.client.post(f"/predictions/{name}/1.0", content=b"x")).status_code == 200
        assert re.search(model["schema"]["pattern"], name)
    assert re.search(version["schema"]["pattern"], "1.0")
    assert paths["/translation"]["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Translation"
    }
    record = schema["components"]["schemas"]["Record"]
    assert [allowed["type"] for allowed in record["properties"]["id"]["anyOf"]] == ["string", "number"]
