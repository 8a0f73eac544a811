"""TorchServe's own documentation, call by call with curl, against our server with our configuration."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwise.client.inference import auth_headers
from tests.server.conftest import Live
from tests.support.running import ask_processes

pytestmark = [pytest.mark.server, pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")]


def curl(live: Live, kind: Any, *arguments: str) -> Any:
    header = [part for name, value in auth_headers(live.record, kind).items() for part in ("-H", f"{name}: {value}")]
    done = subprocess.run(["curl", "-sS", *header, *arguments], capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


def test_register_scale_describe_predict_unregister(live: Live, tmp_path: Path) -> None:
    management, inference = live.record.management_url, live.record.inference_url
    body = tmp_path / "number.txt"
    body.write_text("20")

    said = curl(live, "management", "-X", "POST", f"{management}/models?url=other.mar")
    assert "registered" in said["status"] or said["status"] in ("Workers scaled", "Processing worker updates...")
    said = curl(live, "management", "-X", "PUT", f"{management}/models/other?min_worker=1&synchronous=true")
    assert "status" in said
    listed = curl(live, "management", f"{management}/models")
    assert {"modelName": "other", "modelUrl": "other.mar"} in listed["models"]
    described = curl(live, "management", f"{management}/models/other")
    described = described[0] if isinstance(described, list) else described
    assert described["modelName"] == "other"
    assert [worker["status"] for worker in described["workers"]] == ["READY"]

    assert curl(live, "inference", f"{inference}/predictions/other", "-T", str(body)) == {"answer": 41.0}
    assert curl(live, "inference", f"{inference}/predictions/other", "-F", f"data=@{body}") == {"answer": 41.0}
    urlencoded = curl(live, "inference", f"{inference}/predictions/other", "-d", "20")  # curl's default
    if live.record.kind == "slotwise":  # its front sees that it is no form
        assert urlencoded == {"answer": 41.0}
    else:
        assert urlencoded["error"]["code"] == 415, "told to send the body as it is"
    refused = curl(live, "inference", f"{inference}/predictions/other", "--data-binary", "x", "-H", "Content-Type: text/plain")
    assert refused["error"].items() >= {"code": 400, "message": "'x' is not a number"}.items()
    assert curl(live, "inference", f"{inference}/ping")["status"] in ("Healthy", "healthy!")

    said = curl(live, "management", "-X", "DELETE", f"{management}/models/other")
    assert "unregistered" in said["status"]


def test_a_call_without_a_token_and_an_archive_from_elsewhere_are_refused(live: Live) -> None:
    if live.record.kind == "mms":
        pytest.skip("MMS has neither tokens nor an allow-list")
    url = f"{live.record.management_url}/models"
    naked = subprocess.run(["curl", "-sS", url], capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(naked.stdout)["type"] == "InvalidKeyException"
    for elsewhere in ("https://example.org/other.mar", "file:///tmp/other.mar"):
        said = curl(live, "management", "-X", "POST", f"{url}?url={elsewhere}")
        assert said["code"] >= 400


def test_a_token_that_somebody_else_renewed_is_found(live: Live) -> None:
    if live.record.kind != "torchserve":
        pytest.skip(f"{live.record.kind} renews no token")
    old = auth_headers(live.record)
    api_key = json.loads((live.record.state_dir / "key_file.json").read_text())["API"]["key"]
    renew = f"{live.record.management_url}/token?type=inference"
    subprocess.run(["curl", "-sSf", "-H", f"Authorization: Bearer {api_key}", renew], check=True, capture_output=True)
    assert auth_headers(live.record) != old
    assert live.inference.ping()
    used = ["-H", f"Authorization: {old['Authorization']}"]
    refused = subprocess.run(["curl", "-sS", *used, f"{live.record.inference_url}/ping"], check=True, capture_output=True)
    assert json.loads(refused.stdout)["type"] == "InvalidKeyException"


def test_only_loopback_listens(live: Live) -> None:
    connections = chain(*ask_processes(live.record.run_id, lambda process: process.net_connections()).values())
    listening = [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {live.record.ports.inference, live.record.ports.management} <= {address.port for address in listening}
