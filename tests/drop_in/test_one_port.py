"""A deployment whose management API is where predictions are, and whose gRPC is over TLS; a handler that describes itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from slotwise.profiles.ports import Ports
from tests.drop_in.stores import plain_store
from tests.support.certificates import certificate
from tests.support.deployments import OURS, Deployment, deployed
from tests.support.torchserve_client import TorchServeClient, client_of

LINES = ("default_workers_per_model=1", "metrics_mode=prometheus", "enable_grpc_ssl=true")
MODELS = "headers.mar,errors.mar"
NOT_FOUND, NOT_ALLOWED, NO_TOKEN = "ResourceNotFoundException", "MethodNotAllowedException", "InvalidKeyException"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("d")
    cert, key = certificate(place, "cert")
    free = Ports.free()
    lines = (*LINES, f"certificate_file={cert}", f"private_key_file={key}")
    ports = replace(free, management=free.inference)
    with deployed(OURS, place, plain_store(place / "store"), lines, ("--ncs", "--models", MODELS), ports=ports) as running:
        for model in ("headers", "errors"):
            running.wait_ready(model)
        yield running


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[TorchServeClient]:
    with client_of(deployment.ports, deployment.folder, deployment.folder / "cert.pem") as one:
        yield one


def asked(deployment: Deployment, method: str, path: str, token: str) -> httpx.Response:
    headers = deployment.headers(token) if token else {}
    return deployment.asked(method, deployment.inference + path, headers=headers, content=b"x" if method == "POST" else b"")


def test_each_api_wants_its_own_token(deployment: Deployment) -> None:
    for method, path, token in (
        ("POST", "/predictions/headers", "inference"),
        ("POST", "/models/headers/invoke", "inference"),
        ("GET", "/models", "management"),
        ("GET", "/models/headers/1.0", "management"),
        ("PUT", "/models/headers/1.0/set-default", "management"),
    ):
        assert asked(deployment, method, path, token).status_code == 200
        for other in {"inference", "management", "API", ""} - {token}:
            refused = asked(deployment, method, path, other)
            assert (refused.status_code, refused.json()["type"]) == (400, NO_TOKEN)
    assert asked(deployment, "GET", "/token?type=inference", "management").status_code == 400
    assert asked(deployment, "GET", "/token?type=inference", "API").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "token", "status", "kind"),
    [
        ("GET", "/models/nobody", "management", 404, "ModelNotFoundException"),
        ("PATCH", "/models/headers", "management", 405, NOT_ALLOWED),
        ("POST", "/models?url=echo.mar", "management", 405, NOT_ALLOWED),
        ("DELETE", "/models/headers", "management", 405, NOT_ALLOWED),
        ("GET", "/models/headers/1.0/2/3", "management", 404, NOT_FOUND),
        ("GET", "/nothing", "inference", 404, NOT_FOUND),
    ],
)
def test_what_cannot_be_done_is_refused_as_on_a_port_of_its_own(
    deployment: Deployment, method: str, path: str, token: str, status: int, kind: str
) -> None:
    answer = asked(deployment, method, path, token)
    assert (answer.status_code, answer.json()["type"], answer.json()["code"]) == (status, kind, status)


def test_metrics_are_there_and_on_their_own_port(deployment: Deployment) -> None:
    for address in (deployment.inference, deployment.metrics):
        text = deployment.asked("GET", f"{address}/metrics").text
        assert "# TYPE Requests2XX counter" in text
        assert "slotwise_" in text
        assert "slotwise_" not in deployment.asked("GET", f"{address}/metrics?name[]=Requests2XX").text
    assert asked(deployment, "OPTIONS", "/", "").json()["openapi"]


def test_a_handler_says_what_it_is(deployment: Deployment, client: TorchServeClient) -> None:
    said = {"answers": "the header color", "requests": 1}
    for path in ("/models/headers", "/models/headers/1.0"):
        (described,) = asked(deployment, "GET", f"{path}?customized=true", "management").json()
        assert described["customizedMetadata"] == said
        assert "customizedMetadata" not in asked(deployment, "GET", path, "management").json()[0]
    assert "customizedMetadata" not in asked(deployment, "GET", "/models/headers/all?customized=true", "management").json()[0]
    (plain,) = asked(deployment, "GET", "/models/errors?customized=true", "management").json()
    assert plain["customizedMetadata"] == {}  # it says something, but no object
    (described,) = client.ask("DescribeModel", model_name="headers", customized=True).value
    assert described["customizedMetadata"] == said


def test_grpc_is_over_tls(deployment: Deployment, client: TorchServeClient) -> None:
    assert client.predict("errors", b"word").value == "word"
    refused = client.predict("errors", b"boom")
    assert (refused.code, refused.details.partition("\n")[0]) == ("INTERNAL", "the handler failed on this request")
    assert client.ask("RegisterModel", url="echo.mar").code == "PERMISSION_DENIED"
