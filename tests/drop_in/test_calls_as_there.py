"""Calls that are less often made, answered as TorchServe answers them: registrations above all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.drop_in.stores import archive, plain_store
from tests.support.deployments import OURS, Deployment, deployed
from tests.support.torchserve_client import client_of
from tests.support.waiting import until

NO_WORKERS = {"initial_workers": "0"}
LINES = (
    *("default_workers_per_model=1", "cors_allowed_origin=https://page.example", "cors_allowed_headers=x-custom"),
    "disable_token_authorization=true",
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("d")
    options = ("--ncs", "--enable-model-api", "--models", "echo.mar,told.mar")
    store = plain_store(place / "store")
    archive(store, "told", "told")
    with deployed(OURS, place / "d", store, LINES, options) as deployment:
        for model in ("echo", "told"):
            deployment.wait_ready(model)
        yield deployment


def described(running: Deployment, model: str) -> Any:
    return running.call("GET", f"/models/{model}").json()[0]


def asked(running: Deployment, path: str, body: bytes = b"x", method: str = "POST", **headers: str) -> httpx.Response:
    about = {name.replace("_", "-"): value for name, value in headers.items()}
    return running.asked(method, running.inference + path, headers=about, content=body)


def test_another_handler_than_the_archives_own_is_refused(running: Deployment) -> None:
    refused = running.call("POST", "/models", url="spare.mar", handler="echo:other", **NO_WORKERS)
    assert (refused.status_code, refused.json()["message"]) == (
        400,
        "handler=echo:other is refused: the handler of this archive is echo.py",
    )
    for own in ("echo", "echo.py", "echo:handle", ""):
        assert running.call("POST", "/models", url="spare.mar", handler=own, **NO_WORKERS).status_code == 200
        assert running.call("DELETE", "/models/spare").status_code == 200


@pytest.mark.parametrize("url", ["./spare.mar", "store/spare.mar", "/a/b/spare.mar", "spare.mar/"])
def test_of_an_archives_path_its_name_counts(running: Deployment, url: str) -> None:
    assert running.call("POST", "/models", url=url, **NO_WORKERS).status_code == 200
    assert running.call("DELETE", "/models/spare").status_code == 200
    for none in ("/", "/etc/passwd", "spare.mar/x"):
        refused = running.call("POST", "/models", url=none, **NO_WORKERS)
        assert (refused.status_code, refused.json()["message"]) == (404, f"Model not found at: {none}")


def test_the_version_to_scale_may_be_a_parameter(running: Deployment) -> None:
    running.call("POST", "/models", url="echo-2.mar", model_name="echo", **NO_WORKERS)
    try:
        scaled = running.call("PUT", "/models/echo", model_version="2.0", min_worker="1", synchronous="true")
        assert scaled.json() == {"status": "Workers scaled to 1 for model: echo, version: 2.0"}
        assert len(described(running, "echo/2.0")["workers"]) == 1
        refused = running.call("PUT", "/models/echo", model_version="9", min_worker="0")
        assert (refused.status_code, refused.json()["type"]) == (404, "ModelVersionNotFoundException")
        assert described(running, "echo/1.0")["minWorkers"] == 1
    finally:
        running.call("DELETE", "/models/echo/2.0")


def test_bodies_of_kserves_protocols_reach_another_tools_handler_as_they_are(running: Deployment) -> None:
    """No envelope takes them apart: what the handler answers is the answer."""
    body = json.dumps({"instances": [1, 2]}).encode()
    for path in ("/v1/models/echo:predict", "/v1/models/echo:explain", "/v2/models/echo/infer"):
        answer = asked(running, path, body, content_type="application/json")
        assert (answer.status_code, answer.json()["value"]) == (200, {"instances": [1, 2]})
    missing = asked(running, "/v1/models/nobody:predict", body, content_type="application/json")
    assert missing.status_code == 404


def test_a_registration_may_be_a_json_object(running: Deployment) -> None:
    def register(content: object, kind: str = "application/json") -> httpx.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        url = f"{running.management}/models?url=echo-2.mar&initial_workers=0"
        return running.asked("POST", url, headers={"content-type": kind}, content=body)

    said = {"url": "spare.mar", "model_name": "named", "initial_workers": 1, "synchronous": True, "batch_size": 3}
    done = register({**said, "max_batch_delay": None, "made_up": [1]}, "Application/JSON; charset=utf-8")
    assert done.json() == {"status": 'Model "named" Version: 1.0 registered with 1 initial workers'}
    assert described(running, "named")["batchSize"] == 3
    assert running.call("DELETE", "/models/named").status_code == 200
    for nothing in (b"{", b"[]", b"", b"null", {}, {"url": None}, b"[" * 70_000):
        refused = register(nothing)
        assert refused.status_code in (400, 413)
        assert refused.json()["type"] in ("BadRequestException", "RequestEntityTooLargeException")
    assert "echo-2.mar" not in running.call("GET", "/models").text


def test_a_registration_says_how_long_a_start_may_take(running: Deployment) -> None:
    running.call("POST", "/models", url="spare.mar", startup_timeout="33", **NO_WORKERS)
    assert described(running, "spare")["startupTimeout"] == 33
    running.call("DELETE", "/models/spare")
    for bad in ("0", "-1", "x"):
        assert running.call("POST", "/models", url="spare.mar", startup_timeout=bad, **NO_WORKERS).status_code == 400


def test_a_registration_waits_for_its_workers_unless_it_says_otherwise(running: Deployment) -> None:
    done = running.call("POST", "/models", url="spare.mar", initial_workers="1")
    assert (done.status_code, done.json()) == (
        200,
        {"status": 'Model "spare" Version: 1.0 registered with 1 initial workers'},
    )
    assert running.call("PUT", "/models/spare", min_worker="1").status_code == 202
    running.call("DELETE", "/models/spare")
    assert running.call("POST", "/models", url="spare.mar", initial_workers="1", synchronous="false").status_code == 202
    running.call("DELETE", "/models/spare")


def test_a_handlers_own_cors_header_stands_alone(running: Deployment) -> None:
    plain = asked(running, "/predictions/echo")
    assert plain.headers.get_list("access-control-allow-origin") == ["https://page.example"]
    own = asked(running, "/predictions/told", x_origin="https://other.example")
    assert own.headers.get_list("access-control-allow-origin") == ["https://other.example"]
    assert own.headers.get_list("access-control-allow-headers") == ["x-custom"]


def test_a_slash_at_the_end_changes_nothing(running: Deployment) -> None:
    assert asked(running, "/ping/", b"", "GET").json() == {"status": "Healthy"}
    assert asked(running, "/predictions/echo/").status_code == 200
    assert running.call("GET", "/models/").json() == running.call("GET", "/models").json()
    for path in ("/models/echo/", "/models/echo/1.0/"):
        assert running.call("GET", path).json()[0]["modelName"] == "echo"
    assert running.call("DELETE", "/models/nobody/").status_code == 404


def test_the_old_address_of_predictions_is_there(running: Deployment) -> None:
    for path in ("/echo/predict", "/echo/1.0/predict", "/echo/predict/"):
        answer = asked(running, path, b"text", content_type="text/plain")
        assert (answer.status_code, answer.json()["value"]) == (200, "text")
    refused = asked(running, "/nobody/predict")
    assert (refused.status_code, refused.json()["message"]) == (404, "Model not found: nobody")


def test_a_parameter_of_the_address_is_bytes_as_there(running: Deployment) -> None:
    answer = asked(running, "/models/told/invoke?also=%C3%A9", b"text")
    assert answer.json()["fields"] == {"also": "bytearray é", "body": "bytearray text"}


def test_the_management_port_says_whether_a_model_is_ready(running: Deployment) -> None:
    assert running.call("GET", "/v1/models/echo").json() == {"name": "echo", "ready": True}
    running.call("POST", "/models", url="spare.mar", **NO_WORKERS)
    assert running.call("GET", "/v1/models/spare").json() == {"name": "spare", "ready": False}
    running.call("DELETE", "/models/spare")
    missing = running.call("GET", "/v1/models/nobody")
    assert (missing.status_code, missing.json()["message"]) == (404, "Model not found: nobody")


def test_what_a_handler_says_of_itself_is_json_and_an_error_of_it_is_an_error(running: Deployment) -> None:
    for version in ("1.0", "2.0"):
        archive(running.folder.parent / "store", f"describes-{version}", "describes", version=version)
        url = f"describes-{version}.mar"
        running.call("POST", "/models", url=url, model_name="describes", initial_workers="1", synchronous="true")
    said = running.call("GET", "/models/describes/1.0", customized="true")
    assert said.json()[0]["customizedMetadata"] == {"share": "NaN"}
    failed = running.call("GET", "/models/describes/2.0", customized="true")
    error = {"code": 500, "type": "InternalServerException", "message": "the handler failed on this request"}
    assert (failed.status_code, failed.json()) == (500, error)
    for version in ("2.0", "1.0"):
        running.call("DELETE", f"/models/describes/{version}")


def test_a_prediction_says_that_no_explanation_is_wanted(running: Deployment) -> None:
    for path, said in (("/predictions/told", "False"), ("/explanations/told", "True")):
        assert asked(running, path).json()["explain"] == said


@pytest.mark.parametrize("rest", ["a b/c", "é", "日本/кот.jpg", "😀"])
def test_the_rest_of_the_address_reaches_the_handler_in_any_script(running: Deployment, rest: str) -> None:
    answer = asked(running, f"/predictions/echo/1.0/{quote(rest)}").json()
    assert answer["path"] == rest


def test_who_accepts_events_alone_gets_the_whole_answer_of_a_model_that_gives_none(running: Deployment) -> None:
    answer = asked(running, "/predictions/echo", accept="text/event-stream")
    assert (answer.status_code, answer.json()["value"]) == (200, "x")


def test_the_access_log_has_addresses_as_they_were_sent_and_no_secret(running: Deployment) -> None:
    asked(running, "/predictions/x%22%20200%201%20%0a", b"", "GET")
    for path in ("/models?ur%6c=https://user:S3CRET@h:1/x.mar", "/model%73/?url=https://user:S3CRET@h:1/x.mar&batch_size=2"):
        running.asked("POST", running.management + path)
    running.call("GET", "/models", limit="1")
    log = running.folder / "logs" / "access_log.log"
    until(lambda: '"GET /models?limit=1 HTTP/1.1" 200 ' in log.read_text(), "the last one is in no log")
    text = log.read_text()
    for target in (
        "/predictions/x%22%20200%201%20%0a",
        "/models?url=https://h:1/x.mar",
        "/model%73/?url=https://h:1/x.mar&batch_size=2",
    ):
        assert f" {target} HTTP/1.1" in text
    assert "S3CRET" not in text


def test_the_access_log_has_a_line_for_every_call_of_grpc(running: Deployment) -> None:
    with client_of(running.ports, running.folder) as client:
        assert client.ask("Ping", token="").code == "OK"
        assert client.ask("Predictions", token="", model_name="nobody", input={"data": b"x"}).code == "INTERNAL"
        assert client.ask("ListModels", token="").code == "OK"
    log = running.folder / "logs" / "access_log.log"
    named = {
        "inference.InferenceAPIsService/Ping": 0,
        "inference.InferenceAPIsService/Predictions": 13,
        "management.ManagementAPIsService/ListModels": 0,
    }
    for call, code in named.items():
        line = rf' - /127\.0\.0\.1:\d+ "gRPC org\.pytorch\.serve\.grpc\.{call} HTTP/2\.0" {code} \d+$'
        until(lambda line=line: re.search(line, log.read_text(), re.MULTILINE), f"no line of {call}")
