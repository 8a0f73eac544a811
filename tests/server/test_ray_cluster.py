"""Joining a Ray that somebody else started: with its token, and it is left as it was."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import start, stop
from slotwise.server.processes import MARK, end, processes_of
from slotwise.server.record import ServerRecord
from tests.server.conftest import RAY_PATIENCE_S, build_handler
from tests.support.ray_nodes import RAY_ON_LOOPBACK

pytest.importorskip("ray", reason="Ray is not installed: scripts/setup.sh full")
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

HOST = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's own address
ANOTHER_VERSION = """
import json, sys
from ray._raylet import GcsClient
from ray._common.usage import usage_constants
from ray._private import ray_constants
client = GcsClient(address=sys.argv[1])
where = {"namespace": ray_constants.KV_NAMESPACE_CLUSTER}
known = json.loads(client.internal_kv_get(usage_constants.CLUSTER_METADATA_KEY, **where))
new = json.dumps({**known, "ray_version": "2.9.0"}).encode()
client.internal_kv_put(usage_constants.CLUSTER_METADATA_KEY, new, overwrite=True, **where)
"""


@dataclass(frozen=True)
class Cluster:
    """A head node; its processes carry the run."""

    address: str
    run: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`ray start --head` with a token, as its owner would; for this module that token is ours, too."""
    home, run, ports = tmp_path_factory.mktemp("joined"), uuid.uuid4().hex, Ports.free()
    command = [sys.executable, "-c", RAY_ON_LOOPBACK, "start", "--head", f"--node-ip-address={HOST}"]
    command += [f"--port={ports.inference}", f"--ray-client-server-port={ports.management}", "--dashboard-agent-listen-port=0"]
    command += ["--num-cpus=4", "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=200000000"]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="slotwise-", dir="/tmp") as short:
        for name, value in {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": short,  # a socket's path has a limit
            "RAY_worker_register_timeout_seconds": "300",
            "SLOTWISE_HOME": str(home),
        }.items():
            patch.setenv(name, value)
        environ = {**os.environ, MARK: run}
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=RAY_PATIENCE_S, stdin=subprocess.DEVNULL)
        try:
            yield Cluster(f"{HOST}:{ports.inference}", run)
        finally:
            end(run, 0)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with one model."""
    folder = tmp_path_factory.mktemp("archives")
    return build_handler("quick", folder / "store", folder / "models").parent


def joined(address: str, store: Path) -> ServerRecord:
    """What `slotwise serve --server ray --ray-address` starts."""
    profile = load_profile("cpu", {}, {})
    return start("joined", "ray", profile, model_store=store, ports=Ports.free(), models={}, cluster=address)


def check_answers(record: ServerRecord) -> None:
    """Its model is registered, and answers."""
    with ManagementClient(record) as management, InferenceClient(record) as inference:
        management.register("quick.mar", initial_workers=1)
        management.wait_ready("quick", timeout_s=RAY_PATIENCE_S)
        assert inference.predict("quick", b"4").json() == {"answer": 9.0}


def test_a_cluster_is_joined_and_left_as_it_was(cluster: Cluster, archives: Path) -> None:
    nodes = {process.pid for process in processes_of(cluster.run)}
    for address in (cluster.address, "auto"):  # the second time nothing is left of the first
        record = joined(address, archives)
        try:
            check_answers(record)
        finally:
            stop(record)
        assert processes_of(record.run_id) == []
        assert not Path("/tmp", f"slotwise-{record.run_id}").exists()
    assert nodes <= {process.pid for process in processes_of(cluster.run)}


def test_a_server_that_died_is_started_again_on_its_cluster(cluster: Cluster, archives: Path) -> None:
    dead = joined(cluster.address, archives)
    check_answers(dead)
    os.kill(dead.pid, signal.SIGKILL)
    stop(dead)
    record = joined(cluster.address, archives)  # what the dead one has left is taken away
    try:
        assert not Path("/tmp", f"slotwise-{dead.run_id}").exists()
        check_answers(record)
    finally:
        stop(record)


def test_a_wrong_token_is_one_line(cluster: Cluster, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with pytest.raises(SlotwiseError, match="the cluster refuses the token") as refused:
        joined(cluster.address, archives)
    assert "\n" not in refused.value.message


def test_no_cluster_at_the_address_is_one_line(cluster: Cluster, archives: Path) -> None:
    nowhere = f"{HOST}:{Ports.free().inference}"
    with pytest.raises(SlotwiseError, match=f"there is no Ray cluster at {nowhere}: .*refused"):
        joined(nowhere, archives)


def test_a_cluster_of_another_version_is_one_line(cluster: Cluster, archives: Path) -> None:
    command = [sys.executable, "-c", ANOTHER_VERSION, cluster.address]
    subprocess.run(command, check=True, capture_output=True, timeout=RAY_PATIENCE_S)
    with pytest.raises(SlotwiseError, match=r"the cluster runs another Ray or Python: .*2\.9\.0") as refused:
        joined(cluster.address, archives)
    assert "\n" not in refused.value.message
