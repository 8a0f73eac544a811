"""The gateway in front of real servers: swaps, killed workers and overload, with nothing lost and nothing wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from slotwise import archive
from slotwise.deploy import deploy, registration
from slotwise.errors import SlotwiseError
from slotwise.gateway import process
from slotwise.gateway.process import GatewayRecord
from slotwise.gateway.swap import swap
from slotwise.management import ManagementClient
from slotwise.ports import Ports
from slotwise.profiles import load_profile
from slotwise.server import Kind, ServerRecord, running, start, stop

from .digits_load import Steady, digits

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of run-time state with a model store that holds the digits."""
    home = tmp_path_factory.mktemp("gateway")
    archive.build("digits", home / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        yield home


def start_ready(home: Path, kind: Kind, profile: str, name: str = "default", ports: Ports | None = None) -> ServerRecord:
    """A server with the digits READY."""
    wanted = load_profile(profile)
    record = start(name, kind, wanted, model_store=home / "store", ports=ports or Ports.free())
    with ManagementClient(record) as client:
        info = archive.inspect(home / "store" / "digits.mar")
        deploy(client, info, registration(info, wanted, {}))
    return record


@contextmanager
def front(home: Path, kind: Kind = "torchserve", *options: str) -> Iterator[GatewayRecord]:
    """A server and a gateway before it."""
    start_ready(home, kind, "cpu")
    try:
        record = process.start_detached(
            "default", ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0", *options]
        )
        while not record.status()["ready"]:
            time.sleep(0.1)
        yield record
    finally:
        process.stop()
        for name in ("default", "default-b", "default-c"):
            left = running(name)
            if left is not None:
                stop(left)


def switch(home: Path, kind: Kind, profile: str) -> ServerRecord:
    old = running()
    assert old is not None
    new = swap(old, lambda name, ports: start_ready(home, kind, profile, name, ports))
    assert not old.alive()
    assert running() == new
    return new


def test_swaps_under_load_lose_nothing(home: Path) -> None:
    with front(home) as gateway, Steady(gateway.url) as load:
        load.wait_for(50)
        for kind, profile in (("torchserve", "ei"), ("torchserve", "cpu"), ("mms", "cpu"), ("torchserve", "cpu")):
            switch(home, kind, profile)
            status = gateway.status()
            assert (status["server"]["kind"], status["server"]["profile"], status["leaving"]) == (kind, profile, 0)
            load.wait_for(50)
        with pytest.raises(SlotwiseError, match="does not come up"):
            swap(running(), lambda name, ports: _fail_halfway(home, name, ports))
        assert running("default-b") is None
        assert running("default-c") is None
        load.wait_for(20)
    assert (load.lost, load.wrong) == ([], [])


def _fail_halfway(home: Path, name: str, ports: Ports) -> ServerRecord:
    start(name, "torchserve", load_profile("cpu"), model_store=home / "store", ports=ports)
    raise SlotwiseError("digits does not come up")


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_a_worker_killed_under_load_loses_nothing(home: Path, kind: Kind) -> None:
    with front(home, kind) as gateway, Steady(gateway.url) as load:
        record = running()
        for _ in range(2):
            load.wait_for(50)
            with ManagementClient(record) as client:
                for worker in client.describe("digits").workers:
                    os.kill(worker.pid, signal.SIGKILL)
        load.wait_for(50)
        retries = httpx.get(f"{gateway.url}/metrics").text
    assert (load.lost, load.wrong) == ([], [])
    assert 'slotwise_retries_total{model="digits"}' in retries


def test_what_is_too_much_is_refused_and_what_is_accepted_is_answered(home: Path) -> None:
    with front(home, "torchserve", "--max-in-flight", "4", "--max-queued", "4") as gateway:
        with Steady(gateway.url, clients=32, pause_s=0) as load:
            load.wait_for(200)
            assert gateway.status()["models"][0]["queued"] <= 4
        assert set(load.statuses) == {200, 429}
        assert load.wrong == []
        assert all(lost.startswith("429") for lost in load.lost)
        body = next(iter(digits().values()))
        assert httpx.post(f"{gateway.url}/predictions/digits", content=body).status_code == 200


def test_the_calls_of_old_work_as_they_are(home: Path) -> None:
    picture = digits()["7"]
    with front(home) as gateway:
        url = gateway.url
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
        for body, headers, status in (
            (b"no picture", {}, 400),
            (b"", {}, 400),
            (b"x" * (17 * 2**20), {}, 413),
            (picture, {"x-deadline-ms": "1"}, 504),
        ):
            refused = httpx.post(f"{url}/predictions/digits", content=body, headers=headers)
            assert refused.status_code == status
            assert refused.json()["error"]["request_id"] == refused.headers["x-request-id"]
        log = (home / "default" / "gateway.log").read_text()
        assert refused.headers["x-request-id"] in log
