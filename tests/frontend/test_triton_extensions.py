"""Triton's extensions, by the calls that perf_analyzer and Model Analyzer make, through Triton's own clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.http.app import build_app
from slotwise.frontend.process import GatewayRecord

from .conftest import MakeFront
from .live import StandInThread
from .standin import StandIn
from .test_grpc import port_of, refused

triton_http = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
json_format = pytest.importorskip("google.protobuf.json_format")
from tritonclient.grpc import model_config_pb2, service_pb2  # noqa: E402

PICTURE = b"\x89PNG picture" * 10
MODEL = "digits"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRecord]:
    server = StandInThread(likely=True, models={MODEL: 2, "captions": 1, "empty": 0})
    with server.front(tmp_path_factory.mktemp("triton"), "--grpc-port", "0") as record:
        yield record


@dataclass
class Client:
    """Triton's client of one protocol, with every message as JSON has it."""

    module: Any
    client: Any
    over_grpc: bool

    def json(self, call: str, *arguments: Any) -> Any:
        options = {"as_json": True} if self.over_grpc else {}
        return getattr(self.client, call)(*arguments, **options)

    def config(self) -> Any:
        answer = self.json("get_model_config", MODEL)
        return answer["config"] if self.over_grpc else answer

    def index(self) -> Any:
        answer = self.json("get_model_repository_index")
        return answer["models"] if self.over_grpc else answer


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, front: GatewayRecord) -> Iterator[Client]:
    module, address = {"http": (triton_http, front.url.split("//")[1]), "grpc": (triton_grpc, front.grpc)}[request.param]
    with module.InferenceServerClient(address) as client:
        yield Client(module, client, request.param == "grpc")


def counted(stats: Any, part: str) -> tuple[int, int]:
    """Count and ns of one part; protobuf's JSON has 64 bits as texts, and leaves out what is 0."""
    duration = stats["inference_stats"].get(part, {})
    return int(duration.get("count", 0)), int(duration.get("ns", 0))


def test_perf_analyzer_finds_the_model_its_tensors_and_its_statistics(client: Client) -> None:
    metadata, config = client.json("get_model_metadata", MODEL), client.config()
    assert int(config["max_batch_size"]) == 4
    assert "dynamic_batching" in config
    assert "statistics" in client.json("get_server_metadata")["extensions"]  # or it asks for none
    (given,) = metadata["inputs"]
    assert [tensor["name"] for tensor in config["input"]] == [given["name"]]
    assert [tensor["name"] for tensor in config["output"]] == [tensor["name"] for tensor in metadata["outputs"]]
    shape = [int(side) for side in given["shape"]][1:]  # it drops the batch, and puts its own in front
    assert shape == [int(side) for side in config["input"][0]["dims"]] == [1]
    before = statistics_of(client)
    tensor = client.module.InferInput(given["name"], [3, *shape], given["datatype"])
    tensor.set_data_from_numpy(np.array([[PICTURE]] * 3, dtype=np.object_))
    outputs = [client.module.InferRequestedOutput(output["name"]) for output in metadata["outputs"]]
    started = time.time()
    answer = client.client.infer(MODEL, [tensor], outputs=outputs)
    assert answer.as_numpy("label").tolist() == [b"7"] * 3
    after = statistics_of(client)
    grown = {part: np.subtract(counted(after, part), counted(before, part)) for part in ("success", "queue", "compute_infer")}
    assert {part: count for part, (count, _) in grown.items()} == {"success": 3, "queue": 3, "compute_infer": 3}
    assert grown["compute_infer"][1] == 3 * 2_500_000  # the stand-in says 2.50 ms
    assert grown["success"][1] > 0
    assert int(after["inference_count"]) - int(before.get("inference_count", 0)) == 3
    assert int(after["last_inference"]) >= int(started * 1000)


def statistics_of(client: Client) -> Any:
    """As perf_analyzer finds it: by name, and by a version that is a whole number."""
    found = client.json("get_inference_statistics", MODEL)["model_stats"]
    by_identity = {(entry["name"], str(int(entry["version"]))): entry for entry in found if entry["version"].isdecimal()}
    return by_identity[MODEL, "1"]


def test_every_version_has_its_configuration_and_statistics_and_no_other_has(client: Client) -> None:
    assert client.json("get_inference_statistics", MODEL, "1.0")["model_stats"][0]["version"] == "1.0"
    assert client.json("get_model_config", MODEL, "1.0")
    for call in ("get_model_config", "get_inference_statistics"):
        for model, version in (("nobody", ""), (MODEL, "7")):
            with pytest.raises(client.module.InferenceServerException, match="there is no model"):
                client.json(call, model, version)
    everything = client.json("get_inference_statistics")["model_stats"]
    assert [entry["name"] for entry in everything] == ["captions", MODEL, "empty"]


def test_the_configuration_is_one_of_tritons(client: Client) -> None:
    parsed = json_format.ParseDict(client.config(), model_config_pb2.ModelConfig())
    assert parsed.input[0].data_type == model_config_pb2.TYPE_STRING
    assert parsed.output[2].data_type == model_config_pb2.TYPE_FP32
    assert list(parsed.dynamic_batching.preferred_batch_size) == [4]
    assert parsed.dynamic_batching.max_queue_delay_microseconds == 10_000
    assert [(group.kind, group.count) for group in parsed.instance_group] == [(model_config_pb2.ModelInstanceGroup.KIND_CPU, 2)]


def test_the_index_says_which_models_are_ready(client: Client) -> None:
    states = {entry["name"]: (entry["version"], entry["state"]) for entry in client.index()}
    assert states == {"captions": ("1.0", "READY"), MODEL: ("1.0", "READY"), "empty": ("1.0", "UNAVAILABLE")}


def test_the_messages_have_the_numbers_of_tritons() -> None:
    ours = ("ModelConfigRequest", "ModelConfigResponse", "ModelStatisticsRequest", "ModelStatisticsResponse")
    for name in (*ours, "RepositoryIndexRequest", "RepositoryIndexResponse"):
        same_fields(CLASSES[name].DESCRIPTOR, getattr(service_pb2, name).DESCRIPTOR)


def same_fields(ours: Any, theirs: Any) -> None:
    for field in ours.fields:
        their = theirs.fields_by_number[field.number]
        kind = field.TYPE_INT32 if their.type == field.TYPE_ENUM else their.type
        assert (field.name, field.type, field.is_repeated) == (their.name, kind, their.is_repeated)
        if field.message_type:
            same_fields(field.message_type, their.message_type)


@pytest.mark.anyio
async def test_a_key_sees_its_own_models_and_no_other(make_front: MakeFront, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    narrow, wide = keys.add(file, "narrow", models=("captions",)), keys.add(file, "wide")
    front = await make_front(StandIn(models={MODEL: 1, "captions": 1}))
    front.gateway.keys = KeyFile(file)
    transport = httpx.ASGITransport(build_app(front.gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for key, seen in ((narrow, ["captions"]), (wide, ["captions", MODEL])):
            headers = {"authorization": f"Bearer {key}"}
            listed = (await client.post("/v2/repository/index", headers=headers)).json()
            stats = (await client.get("/v2/models/stats", headers=headers)).json()["model_stats"]
            assert [entry["name"] for entry in listed] == [entry["name"] for entry in stats] == seen
            for path in ("/models", "/status"):
                models = (await client.get(path, headers=headers)).json()["models"]
                assert [model["name"] for model in models] == seen, path
            assert (await client.get("/v1/models", headers=headers)).json() == {"models": seen}
            for part in ("config", "stats", "versions/1.0/config", "versions/1.0/stats"):
                answer = await client.get(f"/v2/models/{MODEL}/{part}", headers=headers)
                assert answer.status_code == (200 if MODEL in seen else 403), answer.text
            for path in (f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/versions/1.0"):
                assert (await client.get(path, headers=headers)).status_code == (200 if MODEL in seen else 403)
            example = await client.get(f"/examples/{MODEL}/none.png", headers=headers)
            assert example.status_code == (404 if MODEL in seen else 403)
            hidden = await client.get("/v2/models/nobody/config", headers=headers)
            assert hidden.status_code == (404 if MODEL in seen else 403)
        for path in ("/v2/models/stats", f"/v2/models/{MODEL}/config"):
            assert (await client.get(path)).status_code == 401
        assert (await client.post("/v2/repository/index")).status_code == 401
    async with port_of(front) as call:
        listed = await call("RepositoryIndex", CLASSES["RepositoryIndexRequest"](), x_api_key=narrow)
        assert [entry.name for entry in listed.models] == ["captions"]
        for name in ("ModelConfig", "ModelStatistics", "ModelMetadata"):
            async with refused("PERMISSION_DENIED"):
                await call(name, CLASSES[f"{name}Request"](name=MODEL), x_api_key=narrow)
            async with refused("UNAUTHENTICATED"):
                await call(name, CLASSES[f"{name}Request"](name=MODEL))


@pytest.mark.anyio
async def test_what_failed_is_counted_apart_and_only_the_ready_are_listed_where_that_is_asked(make_front: MakeFront) -> None:
    front = await make_front(StandIn(models={MODEL: 1, "empty": 0}))
    front.server.script.extend(["answer", "bad"])
    for _ in range(2):
        await front.predict()
    (stats,) = (await front.client.get(f"/v2/models/{MODEL}/stats")).json()["model_stats"]
    durations = stats["inference_stats"]
    assert (durations["success"]["count"], durations["fail"]["count"]) == (1, 1)
    assert durations["success"]["ns"] >= durations["queue"]["ns"] >= 0
    for body, listed in ((b"", [MODEL, "empty"]), (b'{"ready": true}', [MODEL]), (b'{"ready": false}', [MODEL, "empty"])):
        answer = await front.client.post("/v2/repository/index", content=body)
        assert [entry["name"] for entry in answer.json()] == listed
    for body in (b"[]", b"nonsense", b" " * 100_000):
        answer = await front.client.post("/v2/repository/index", content=body)
        assert answer.status_code == 400
        assert isinstance(answer.json()["error"], str)
