"""The gateway in front of real servers: swaps, killed workers and overload, with nothing lost and nothing wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import deploy, registration
from slotwise.errors import SlotwiseError
from slotwise.frontend import process
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.rollout.swap import swap
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, running, start, stop

from .digits_load import Steady, digits

pytestmark = [pytest.mark.server, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of run-time state with a model store that holds the digits."""
    home = tmp_path_factory.mktemp("gateway")
    build("digits", home / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        yield home


def start_ready(home: Path, kind: Kind, profile: str, name: str = "default", ports: Ports | None = None) -> ServerRecord:
    """A server with the digits READY."""
    wanted = load_profile(profile)
    record = start(name, kind, wanted, model_store=home / "store", ports=ports or Ports.free())
    with ManagementClient(record) as client:
        info = inspect(home / "store" / "digits.mar")
        deploy(client, info, registration(info, wanted, {}))
    return record


@pytest.fixture(scope="module")
def gateway(home: Path) -> Iterator[GatewayRecord]:
    """A server and a gateway before it; what a test swaps in, it swaps out."""
    start_ready(home, "torchserve", "cpu")
    try:
        options = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0", "--timeout-s", "240"]
        record = process.start_detached("default", options)
        while not record.status()["ready"]:
            time.sleep(0.1)
        yield record
    finally:
        process.stop()
        for name in ("default", "default-b", "default-c"):
            left = running(name)
            if left is not None:
                stop(left)


def apply(profile: str, kind: Kind) -> ServerRecord:
    """`slotwise apply`, as an operator calls it; the record of the server that serves then."""
    old = running()
    assert old is not None
    command = [sys.executable, "-m", "slotwise.cli", "apply", profile, "--server", kind, "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    new = running()
    assert new is not None
    assert new != old
    assert not old.alive()
    return new


def kill_workers(load: Steady) -> None:
    """SIGKILL every worker of the digits, twice, while they are asked."""
    record = running()
    assert record is not None
    with ManagementClient(record) as client:
        for _ in range(2):
            for worker in client.wait_ready("digits").workers:
                os.kill(worker.pid, signal.SIGKILL)
            load.wait_for(50)


def test_the_calls_of_old_work_as_they_are(home: Path, gateway: GatewayRecord) -> None:
    picture, url = digits()["7"], gateway.url
    answers = [
        httpx.post(f"{url}/predictions/digits", content=picture),
        httpx.put(f"{url}/predictions/digits", content=picture),
        httpx.post(f"{url}/predictions/digits/1.0", content=picture),
        httpx.post(f"{url}/classify/digits", files={"data": ("7.png", picture, "image/png")}),
        httpx.post(f"{url}/predictions/digits", files={"image": ("7.png", picture, "image/png")}),
    ]
    assert [answer.json()["label"] for answer in answers] == ["7"] * 5
    bare = httpx.post(f"{url}/predictions/digits", content=picture, headers={"accept": "text/plain"})
    assert bare.text == "7"


def test_every_error_has_a_request_id_that_is_in_the_log(home: Path, gateway: GatewayRecord) -> None:
    picture = digits()["7"]
    for body, headers, status in (
        (b"no picture", {}, 400),
        (b"", {}, 400),
        (b"x" * (17 * 2**20), {}, 413),
        (picture, {"x-deadline-ms": "1"}, 504),
    ):
        refused = httpx.post(f"{gateway.url}/predictions/digits", content=body, headers=headers)
        assert refused.status_code == status
        assert refused.json()["error"]["request_id"] == refused.headers["x-request-id"]
        assert refused.headers["x-request-id"] in (home / "default" / "gateway.log").read_text()


def test_what_is_too_much_is_refused_and_what_is_accepted_is_answered(gateway: GatewayRecord) -> None:
    with Steady(gateway.url, clients=96, pause_s=0) as load:
        load.wait_for(300)
        status = gateway.status()["models"][0]
        assert status["queued"] <= status["queue_max"]
        assert status["in_flight"] <= status["in_flight_max"]
    assert set(load.statuses) == {200, 429}
    assert load.wrong == []
    assert all(lost.startswith("429") for lost in load.lost)
    body = next(iter(digits().values()))
    assert httpx.post(f"{gateway.url}/predictions/digits", content=body).status_code == 200


def test_a_worker_killed_under_load_loses_nothing(gateway: GatewayRecord) -> None:
    with Steady(gateway.url, pause_s=0) as load:  # a worker always has something in hand
        load.wait_for(50)
        again: list[bool] = []
        for _ in range(5):  # it has nothing in hand at the moments when all clients are still reading their answers
            kill_workers(load)
            metrics = httpx.get(f"{gateway.url}/metrics").text
            again = [f'slotwise_{kind}_total{{model="digits"}}' in metrics for kind in ("retries", "hedges", "alone")]
            if any(again):
                break
    assert (load.lost, load.wrong) == ([], [])
    assert any(again), "what the worker had in hand was answered with its death, or not at all"


def test_swaps_under_load_lose_nothing(home: Path, gateway: GatewayRecord) -> None:
    with Steady(gateway.url) as load:
        load.wait_for(50)
        for kind, profile in (("torchserve", "ei"), ("torchserve", "cpu"), ("mms", "cpu"), ("torchserve", "cpu")):
            apply(profile, kind)
            status = gateway.status()
            assert (status["server"]["kind"], status["server"]["profile"], status["leaving"]) == (kind, profile, 0)
            load.wait_for(50)
            if kind == "mms":
                kill_workers(load)
        old = running()
        assert old is not None
        with pytest.raises(SlotwiseError, match="does not come up"):
            swap(old, lambda name, ports: _fail_halfway(home, name, ports))
        assert (running("default-b"), running("default-c"), running()) == (None, None, old)
        load.wait_for(20)
    assert (load.lost, load.wrong) == ([], [])


def _fail_halfway(home: Path, name: str, ports: Ports) -> ServerRecord:
    start(name, "torchserve", load_profile("cpu"), model_store=home / "store", ports=ports)
    raise SlotwiseError("digits does not come up")
