"""An archive of release 0.1.0 keeps running: on both servers, through `check`, behind the gateway."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slotwise.frontend import process
from slotwise.server.lifecycle import Kind, running, stop

from .digits_load import digits

pytestmark = pytest.mark.server

OLD = Path(__file__).parents[1] / "fixtures" / "digits-0.1.0.mar"
SHA256 = "9d237c82916a666b0a253e4682dfa4dac66457e991ccc0082a961f13fc514239"  # the file itself never changes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder whose model store holds the old archive; what runs there at the end is stopped."""
    (tmp_path / "model_store").mkdir()
    shutil.copy(OLD, tmp_path / "model_store" / "digits.mar")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / ".slotwise"))
    monkeypatch.setenv("HOME", str(tmp_path))  # where OpenVINO writes who it is for its makers: the old worker lets it
    yield tmp_path
    process.stop()
    left = running()
    if left is not None:
        stop(left)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    command = [sys.executable, "-m", "slotwise.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def slotwise(*arguments: str) -> str:
    """What a command that must succeed prints."""
    return run(*arguments).stdout


def test_the_archive_is_the_one_that_0_1_0_built() -> None:
    assert hashlib.sha256(OLD.read_bytes()).hexdigest() == SHA256
    assert json.loads(slotwise("inspect", str(OLD), "--json"))["name"] == "digits"


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_it_serves_on_both_servers_and_through_the_gateway(home: Path, kind: Kind) -> None:
    warned = run("serve", "digits.mar", "--server", kind, "--port", "0", "--detach").stderr
    assert "digits.mar carries the worker of slotwise 0.1.0: `slotwise renew " in warned
    gateway = process.start_detached("default", ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0"])
    while not gateway.status()["ready"]:
        time.sleep(0.1)
    pictures = digits()
    answers = {label: httpx.post(f"{gateway.url}/predictions/digits", content=body) for label, body in pictures.items()}
    assert {label: answer.json()["label"] for label, answer in answers.items()} == {label: label for label in pictures}
    refused = httpx.post(f"{gateway.url}/predictions/digits", content=b"no picture")
    assert refused.status_code == 400
    assert refused.json()["error"]["request_id"] == refused.headers["x-request-id"]


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_it_keeps_its_promises(home: Path, kind: Kind) -> None:
    slotwise("check", "model_store/digits.mar", "--server", kind)
