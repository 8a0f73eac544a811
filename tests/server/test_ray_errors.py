"""What goes wrong with Ray before it starts: one line, and what to do. Needs no Ray."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.management.models import ApiError
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server import lifecycle, supervisor
from slotwise.server.ray import cluster as ray_cluster
from slotwise.server.ray.server import RayHost, deployment_options, last_line, replica_environment


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("no_token")
def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlotwiseError, match="--ray-address needs the cluster's token") as raised:
        ray_cluster.check_address("auto")
    assert "RAY_AUTH_TOKEN" in raised.value.hint
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    ray_cluster.check_address("auto")


@pytest.mark.parametrize("address", ["head", "http://head:6379", "head:port", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SlotwiseError, match="is no address of a Ray cluster"):
        ray_cluster.check_address(address)


def test_the_address_of_rays_client_is_refused() -> None:
    with pytest.raises(SlotwiseError, match="ray:// is the address of Ray's client"):
        ray_cluster.check_address("ray://head:10001")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    with pytest.raises(SlotwiseError, match="--server ray needs the Python package ray") as raised:
        lifecycle.check_can_start("x", "ray", Ports.free())
    assert raised.value.hint.endswith('pip install "slotwise[ray]"')


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.9"), "the cluster runs another Ray"),
        (ConnectionError("Could not find any running Ray instance."), "there is no Ray cluster at auto"),
        (RuntimeError("InvalidAuthToken: Token authentication is enabled"), "the cluster refuses the token"),
    ],
)
def test_rays_own_errors_are_one_line(raised: Exception, message: str) -> None:
    class Record:
        cluster = "auto"
        state_dir = Path()

    error = ray_cluster._plain(Record(), raised)  # type: ignore[arg-type]
    assert error.message.startswith(message)
    assert "\n" not in error.message
    assert error.hint


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: scripts/setup.sh full")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SlotwiseError, match=rf"port {port} \(inference\) cannot be used: ") as raised:
            lifecycle.check_can_start("x", "ray", replace(Ports.free(), inference=port))
    assert "--port 0" in raised.value.hint


def test_the_profile_becomes_serves_options() -> None:
    options = deployment_options(load_profile("cpu", {"job_queue_size": "7"}, {}, cores=0), 16, 3)
    assert (options["num_replicas"], options["max_ongoing_requests"], options["max_queued_requests"]) == (3, 32, 7)
    changes = {"min_replicas": "1", "max_replicas": "9", "num_cpus": "2", "max_ongoing_requests": "5"}
    profile = load_profile("cpu", changes, {}, cores=0)
    options = deployment_options(profile, 16, 1)
    scaling = options["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"], scaling["target_ongoing_requests"]) == (1, 9, 16.0)
    assert (scaling["upscale_delay_s"], scaling["downscale_delay_s"]) == (30, 600)
    assert "num_replicas" not in options
    fewer = load_profile("cpu", {"min_replicas": "2", "max_replicas": "4"}, {}, cores=0)
    initial = [deployment_options(fewer, 16, replicas)["autoscaling_config"]["initial_replicas"] for replicas in (1, 3, 9)]
    assert initial == [2, 3, 4]  # whatever a registration says, Ray wants it in between
    assert '"threads": 2' in replica_environment(profile, changes, {"digits": 1})["SLOTWISE_OVERRIDES"]


def test_what_was_scaled_to_0_on_an_autoscaling_profile_comes_back_and_a_failed_unregister_leaves_no_ghost() -> None:
    host: Any = RayHost.__new__(RayHost)
    profile = load_profile("cpu", {"max_replicas": "4"}, {}, cores=0)

    def version(number: str, workers: int) -> Any:
        return SimpleNamespace(name="m", version=number, profile=profile, min_workers=workers, max_workers=workers)

    host.versions = {"m": [version("1", 1), version("2", 1)]}
    host._deploy = lambda versions: host.versions.update(m=versions)
    with pytest.raises(ApiError, match="Ray scales m by itself"):
        host.scale(version("1", 2))
    host.scale(version("1", 0))
    host.scale(version("1", 2))
    assert [one.max_workers for one in host.versions["m"]] == [2, 1]

    def fails(versions: list[Any]) -> None:
        raise ConnectionError

    host._deploy = fails
    with pytest.raises(ConnectionError):
        host.unregister(version("2", 1))
    assert [one.version for one in host.versions["m"]] == ["1"]


def test_no_replica_at_least_is_none_at_all_whatever_the_most_is() -> None:
    host: Any = RayHost.__new__(RayHost)
    deleted = list[str]()
    host.serve, host.versions = SimpleNamespace(delete=deleted.append), {}
    host._deploy([SimpleNamespace(name="m", version="1", min_workers=0, max_workers=1)])
    assert deleted == ["m"]


def test_replicas_are_workers() -> None:
    assert load_profile("cpu", {"num_replicas": "4"}, {}, cores=0).on("ray").initial_workers == 4
    assert load_profile("cpu", {"num_replicas": "4"}, {}, cores=0).on("mms").initial_workers == 1
    assert load_profile("cpu", {"min_replicas": "2", "max_replicas": "8"}, {}, cores=0).on("ray").initial_workers == 2


def test_of_a_traceback_the_last_line_is_shown() -> None:
    assert last_line("Traceback\n  File x\nValueError: these weights\n\n") == "ValueError: these weights"


def test_every_host_has_its_packages_named() -> None:
    assert set(supervisor.HOSTS) == set(supervisor.PACKAGES)
