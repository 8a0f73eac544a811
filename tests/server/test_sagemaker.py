"""SageMaker's runtime client and its multi-model contract, through the gateway to a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from slotwise.errors import SlotwiseError
from tests.server.conftest import BATCHES, Live, build_handler, started
from tests.server.digits_load import digits
from tests.support.sagemaker import runtime_client

pytestmark = [pytest.mark.server, pytest.mark.slow]
NAME = "0f3c9e"  # as SageMaker names models


@pytest.fixture(scope="module", params=["torchserve", "mms"])
def live(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of its own, because before the session's there may be a gateway, and a server has one.

    It finds no program on its PATH, as in a slim image: not even `kill`.
    """
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("no-programs")))
        server = stack.enter_context(started(request.param, tmp_path_factory.mktemp("sagemaker"), store))
        patch.undo()
        server.management.register("digits.mar", **BATCHES)
        server.management.wait_ready("digits")
        yield server


@pytest.fixture
def folder(live: Live, tmp_path: Path) -> Iterator[Path]:
    """Where SageMaker puts models: one under a name of its own, and one that is none."""
    models = tmp_path / "models"
    (models / NAME / "model").mkdir(parents=True)
    build_handler("theirs", models / NAME / "model", tmp_path / "work")
    (models / "greedy" / "model").mkdir(parents=True)
    build_handler("greedy", models / "greedy" / "model", tmp_path / "work", handler="greedy")
    (models / "broken" / "model").mkdir(parents=True)
    (models / "broken" / "model" / "broken.mar").write_bytes(b"no archive")
    yield models
    with suppress(SlotwiseError):
        live.management.unregister(NAME)


def test_the_runtimes_client_asks_a_real_model(live: Live, folder: Path) -> None:
    given = digits()
    with live.front("--multi-model", str(folder), "--default-model", "digits") as front:
        client = runtime_client(front.url)
        for name in ("3", "7"):
            answer = client.invoke_endpoint(EndpointName="mine", ContentType="image/png", Body=given[name])
            assert json.loads(answer["Body"].read())["label"] == name
        answer = client.invoke_endpoint(EndpointName="mine", ContentType="image/png", Accept="text/plain", Body=given["5"])
        assert answer["Body"].read() == b"5"
        with pytest.raises(client.exceptions.ClientError, match="400"):
            client.invoke_endpoint(EndpointName="mine", Body=b"no picture")

        with httpx.Client(base_url=front.url, timeout=300, trust_env=False) as platform:

            def load(name: str) -> int:
                url = str(folder / name / "model")
                return platform.post("/models", json={"model_name": name, "url": url}).status_code

            assert [load(NAME), load(NAME), load("broken"), load("greedy")] == [200, 409, 400, 507]
            assert platform.get(f"/models/{NAME}").json() == {"modelName": NAME, "modelUrl": str(folder / NAME / "model")}
            many = runtime_client(front.url, lambda headers: f"/models/{headers['X-Amzn-SageMaker-Target-Model']}/invoke")
            answer = many.invoke_endpoint(EndpointName="mine", TargetModel=NAME, ContentType="text/plain", Body=b"20")
            assert json.loads(answer["Body"].read()) == {"answer": 41.0}
            assert platform.delete(f"/models/{NAME}").status_code == 200
            assert platform.post(f"/models/{NAME}/invoke", content=b"1").status_code == 404
            assert platform.delete(f"/models/{NAME}").status_code == 404
            assert not list(live.record.model_store.glob("on-demand-*"))
            assert platform.get("/ping").status_code == 200
