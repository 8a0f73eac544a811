"""Real clients of other servers, unmodified, through the gateway to a real server."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from slotwise.frontend.process import GatewayRecord
from tests.server.digits_load import digits

pytestmark = [pytest.mark.server, pytest.mark.slow]  # the clients are installed by `make full`
triton = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
ROOT = Path(__file__).resolve().parents[3]
KSERVE = ROOT / ".slotwise" / "kserve" / "bin" / "python"  # where scripts/setup.sh installs KServe's client


@pytest.fixture
def client(front: GatewayRecord) -> Iterator[Any]:
    with triton.InferenceServerClient(urlsplit(front.url).netloc, concurrency=8) as client:
        yield client


@pytest.fixture
def grpc_client(front: GatewayRecord) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(front.grpc) as client:
        yield client


def pictures(bodies: list[bytes], binary: bool = True) -> Any:
    """One input of so many pictures."""
    tensor = triton.InferInput("input", [len(bodies)], "BYTES")
    data = bodies if binary else [base64.b64encode(body) for body in bodies]
    return tensor.set_data_from_numpy(np.array(data, dtype=np.object_), binary_data=binary)


def pictures_over_grpc(bodies: list[bytes]) -> Any:
    """The same, for gRPC."""
    tensor = triton_grpc.InferInput("input", [len(bodies)], "BYTES")
    return tensor.set_data_from_numpy(np.array(bodies, dtype=np.object_))


@pytest.mark.parametrize("binary", [True, False])
def test_tritons_client_gets_every_record_in_its_place(client: Any, binary: bool) -> None:
    given = digits()
    names = [*"0123456789"] * 2
    bodies = [given[name] for name in names]
    bodies[7] = b"no picture"
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("label", "probability")]
    result = client.infer("digits", [pictures(bodies, binary)], outputs=wanted, request_id="mine")
    labels = [label.decode() if isinstance(label, bytes) else label for label in result.as_numpy("label").tolist()]
    assert labels == [*names[:7], "", *names[8:]]
    assert (result.as_numpy("probability")[:7] > 0.4).all()
    told = result.get_response()
    assert told["id"] == "mine"
    assert json.loads(told["parameters"]["errors"])["7"]["code"] == 400


def test_tritons_client_asks_for_health_metadata_and_many_at_once(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("nobody")
    assert client.get_model_metadata("digits")["inputs"][0]["datatype"] == "BYTES"
    assert client.get_server_metadata()["name"] == "slotwise"
    given = digits()
    under_way = {name: client.async_infer("digits", [pictures([given[name]])]) for name in given}
    for name, one in under_way.items():
        assert one.get_result().as_numpy("label").tolist() == [name.encode()]
    with pytest.raises(triton.InferenceServerException, match="there is no model nobody"):
        client.get_model_metadata("nobody")
    with pytest.raises(triton.InferenceServerException, match="picture"):
        client.infer("digits", [pictures([b"no picture"])])


def test_tritons_grpc_client_gets_every_record_in_its_place(grpc_client: Any) -> None:
    given = digits()
    names = [*"0123456789"] * 2
    bodies = [given[name] for name in names]
    bodies[7] = b"no picture"
    wanted = [triton_grpc.InferRequestedOutput(name) for name in ("label", "probability")]
    result = grpc_client.infer("digits", [pictures_over_grpc(bodies)], outputs=wanted, request_id="mine", client_timeout=60)
    assert [label.decode() for label in result.as_numpy("label")] == [*names[:7], "", *names[8:]]
    assert (result.as_numpy("probability")[:7] > 0.4).all()
    told = result.get_response()
    assert told.id == "mine"
    assert json.loads(told.parameters["errors"].string_param)["7"]["code"] == 400


def test_tritons_grpc_client_asks_for_health_metadata_and_many_at_once(grpc_client: Any) -> None:
    assert grpc_client.is_server_live()
    assert grpc_client.is_server_ready()
    assert grpc_client.is_model_ready("digits")
    assert not grpc_client.is_model_ready("nobody")
    assert grpc_client.get_model_metadata("digits").inputs[0].datatype == "BYTES"
    assert grpc_client.get_server_metadata().name == "slotwise"
    given, answers = digits(), SimpleQueue[Any]()
    for name in given:
        grpc_client.async_infer(
            "digits", [pictures_over_grpc([given[name]])], lambda result, error: answers.put(error or result), request_id=name
        )
    for result in [answers.get(timeout=60) for _ in given]:
        assert result.as_numpy("label").tolist() == [result.get_response().id.encode()]
    with pytest.raises(triton_grpc.InferenceServerException, match="there is no model nobody"):
        grpc_client.get_model_metadata("nobody")
    with pytest.raises(triton_grpc.InferenceServerException, match=r"INVALID_ARGUMENT.*picture"):
        grpc_client.infer("digits", [pictures_over_grpc([b"no picture"])])


@pytest.mark.skipif(not KSERVE.exists(), reason=f"there is no {KSERVE}: `make full` installs KServe's client there")
def test_kserves_own_client(front: GatewayRecord, tmp_path: Path) -> None:
    files = {name: ROOT / "models" / "digits" / "examples" / f"{name}.png" for name in "374"}
    (tmp_path / "bad").write_bytes(b"no picture")
    asked = [files["3"], tmp_path / "bad", files["7"], files["4"]]
    script = Path(__file__).with_name("kserve_client.py")
    done = subprocess.run([KSERVE, script, front.url, front.grpc, *asked], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, bad, *last = found["v1"]["predictions"]
    assert [first["label"], bad["error"]["code"], *(one["label"] for one in last)] == ["3", 400, "7", "4"]
    assert found["v2 json"] == found["v2 binary"] == found["grpc"] == ["3", "", "7", "4"]
    assert all(found["live"] + found["ready"] + found["model"])
    assert found["nobody"] == [False, False]
    assert "picture" in found["rest refuses"]
    assert "picture" in found["grpc refuses"]


def test_kserves_form_and_sagemakers(front: GatewayRecord) -> None:
    instances = [{"b64": base64.b64encode(body).decode()} for body in (digits()["3"], b"no picture", digits()["5"])]
    answer = httpx.post(f"{front.url}/v1/models/digits:predict", json={"instances": instances}, timeout=60)
    first, bad, last = answer.json()["predictions"]
    assert (first["label"], bad["error"]["code"], last["label"]) == ("3", 400, "5")
    assert httpx.get(f"{front.url}/ping").status_code == 200
