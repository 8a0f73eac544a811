"""SageMaker's contracts: its runtime's own client with only the path rewritten, and the models that it has loaded."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from slotwise.backends.interface import NoMemory
from slotwise.backends.remote.server_view import ModelLoader
from slotwise.deploy import on_demand
from slotwise.errors import SlotwiseError
from tests.support.sagemaker import runtime_client

from .conftest import MakeFront
from .live import StandInThread
from .standin import StandIn


def test_the_runtimes_client_asks_the_one_model(tmp_path: Path) -> None:
    server = StandInThread(models={"digits": 1})
    with server.front(tmp_path) as gateway:
        client = runtime_client(gateway.url)
        given = {"EndpointName": "mine", "ContentType": "image/png", "Accept": "text/plain", "CustomAttributes": "trace=1"}
        answer = client.invoke_endpoint(**given, Body=b"picture")
        assert json.loads(answer["Body"].read())["label"] == "7"
        assert answer["ContentType"] == "application/json"  # what the model said, whatever was wished
        seen = server.server.seen[0]
        assert (seen.target, seen.body) == ("/predictions/digits", b"picture")
        assert (seen.headers["content-type"], seen.headers["accept"]) == ("image/png", "text/plain")
        assert seen.headers["x-amzn-sagemaker-custom-attributes"] == "trace=1"
        assert seen.headers["authorization"] == "Bearer token"  # the server's, not the client's signature
        server.server.script.append("bad")
        with pytest.raises(client.exceptions.ClientError) as refused:
            client.invoke_endpoint(EndpointName="mine", Body=b"no picture")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


class Loading:
    """What loads into a stand-in. gate: while it is closed nothing gets loaded. begun: something is to be."""

    def __init__(self, server: StandIn) -> None:
        self.server, self.gate, self.begun = server, threading.Event(), threading.Event()
        self.gate.set()

    def load(self, record: Any, name: str, url: str) -> None:
        self.begun.set()
        self.gate.wait(60)
        if "large" in url:
            raise NoMemory("it wants 9000 MiB of 100 MiB that are free", "unload another model")
        if "broken" in url:
            raise SlotwiseError("it is no zip file")
        self.server.models[name] = 1

    def unload(self, record: Any, name: str) -> None:
        del self.server.models[name]


@pytest.mark.anyio
async def test_models_are_loaded_and_unloaded_as_the_contract_says(make_front: MakeFront) -> None:
    server = StandIn(models={})
    loading = Loading(server)
    front = await make_front(server, loader=ModelLoader(loading.load, loading.unload))

    async def load(name: object, url: object = "/opt/ml/models/a1/model") -> int:
        return (await front.client.post("/models", json={"model_name": name, "url": url})).status_code

    assert (await front.client.get("/ping")).status_code == 200  # no model, but ready to load one
    assert (await front.client.get("/models")).json() == {"models": []}
    assert (await front.client.post("/models/a1/invoke", content=b"x")).status_code == 404
    loading.gate.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(load, "a1")
        await anyio.to_thread.run_sync(loading.begun.wait)
        assert await load("a1") == 409  # somebody loads it just now
        loading.gate.set()
    assert await load("a1") == 409
    assert await load("b2", "/opt/ml/models/large") == 507
    assert await load("b2", "/opt/ml/models/broken") == 400
    assert [await load(name, url) for name, url in (("../b", "/x"), (None, "/x"), ("b", ""), ("b", 7))] == [400] * 4
    assert (await front.client.post("/models", content=b"{" * 70_000)).status_code == 400
    described = {"modelName": "a1", "modelUrl": "/opt/ml/models/a1/model"}
    assert (await front.client.get("/models")).json() == {"models": [described]}
    assert (await front.client.get("/models/a1")).json() == described
    answer = await front.client.post("/models/a1/invoke", content=b"x", headers={"x-amzn-sagemaker-target-model": "a.tar.gz"})
    assert (answer.status_code, server.seen[-1].target) == (200, "/predictions/a1")
    assert (await front.client.get("/status")).json()["models"][0]["takes"] == "file"  # for the page
    assert (await front.client.delete("/models/a1")).status_code == 200
    assert (await front.client.delete("/models/a1")).status_code == 404
    assert (await front.client.get("/models/a1")).status_code == 404
    assert (await front.client.get("/ping")).status_code == 200


@pytest.mark.anyio
async def test_without_it_nothing_can_be_loaded(make_front: MakeFront) -> None:
    front = await make_front()
    assert (await front.client.post("/models", json={"model_name": "a", "url": "/x"})).status_code == 405
    assert (await front.client.delete("/models/digits")).status_code == 404
    assert (await front.client.get("/models")).json()["models"][0]["name"] == "digits"


def test_only_one_archive_below_the_folder_is_meant(tmp_path: Path) -> None:
    model = tmp_path / "models" / "a1" / "model"
    model.mkdir(parents=True)
    for name in ("outside.mar", "models/a1/model/one.mar"):
        (tmp_path / name).touch()
    assert on_demand.find(tmp_path / "models", str(model)) == model / "one.mar"
    assert on_demand.find(tmp_path / "models", str(model / "one.mar")) == model / "one.mar"
    (model / "two.mar").symlink_to(tmp_path / "outside.mar")
    for url in (str(model), f"{model}/two.mar", f"{model}/../../../outside.mar", "/etc", f"{model}/three.mar"):
        with pytest.raises(SlotwiseError):
            on_demand.find(tmp_path / "models", url)
