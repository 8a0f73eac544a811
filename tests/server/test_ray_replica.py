"""What a replica of Ray's does besides answering, and what is kept of it. Needs the package, and no Ray that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: scripts/setup.sh full")

from slotwise.archive.local_model import LocalAnswer
from slotwise.host.on_ray import server as on_ray
from slotwise.server.ray import archives as ray_archives
from slotwise.server.ray import cluster as ray_cluster
from slotwise.server.ray import replica as ray_replica
from slotwise.server.ray.server import RayHost


def test_a_name_that_is_a_time_and_a_count_is_what_it_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[str, float]] = []

    class Kind:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name

    class Gauge(Kind):
        def set(self, value: float, tags: dict[str, str]) -> None:
            recorded.append((self.name, value))

    class Counter(Kind):
        def inc(self, value: float, tags: dict[str, str]) -> None:
            recorded.append((self.name, value))

    monkeypatch.setattr(ray_replica.ray.util.metrics, "Gauge", Gauge)
    monkeypatch.setattr(ray_replica.ray.util.metrics, "Counter", Counter)
    metrics = ray_replica.ReplicaMetrics("m")
    metrics.record("Took", 3.0, "ms", None)
    metrics.record("Took", 2.0, "", None)
    metrics.record("Asked", 1.0, "", 200)
    metrics.record("Asked", 7.0, "ms", None)
    metrics.record("Took", 4.0, "ms", None)
    assert recorded == [("Took", 3.0), ("Asked", 1.0), ("Took", 4.0)]


def test_a_replica_whose_worker_will_answer_nothing_more_ends_with_its_last_answers() -> None:
    given, asked = [LocalAnswer(200, "text/plain", {}, b"last")], list[Any]()
    replica = ray_replica.Replica.__new__(ray_replica.Replica)
    replica.ending, replica.loop = False, SimpleNamespace(call_soon_threadsafe=asked.append)  # type: ignore[assignment]
    replica.model = SimpleNamespace(answer=lambda requests: given, alive=False, close=lambda: None)  # type: ignore[assignment]
    assert [answer.body for answer in replica.answer_batch([]).answers] == [b"last"]
    assert asked == [replica._end]
    assert replica.gone


def test_what_is_kept_of_replicas_does_not_grow(tmp_path: Path) -> None:
    archives = ray_archives.Archives(str(tmp_path / "archives"))
    for i in range(2000):
        archives.report(f"r{i}", {"pid": i})
        archives.fail("m_1", f"{i}")
    archives.fail("m_2", "once")
    reports, failures = archives.reports()
    assert (len(reports), reports["r1999"]) == (ray_archives.MOST_REPORTS, {"pid": 1999})
    assert failures == {"m_1": ["1997", "1998", "1999"], "m_2": ["once"]}
    archives.forget("m_1")
    assert archives.reports()[1] == {"m_2": ["once"]}


@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_ray_without_a_part_that_it_never_starts_again_ends_its_server(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    dead = [("log_monitor", None)]
    monkeypatch.setattr(ray_replica.ray._private.worker, "_global_node", SimpleNamespace(dead_processes=lambda: dead))
    monkeypatch.setattr(on_ray, "LOOK_S", 0.01)

    async def ends() -> list[bool]:
        ended = asyncio.Event()
        watching = asyncio.create_task(on_ray.end_with(ray_cluster.ended_part, ended))
        await asyncio.sleep(0.1)
        before = ended.is_set()
        dead.append((part, None))
        await asyncio.wait_for(watching, 10)
        return [before, ended.is_set()]

    assert asyncio.run(ends()) == [False, True]


def test_what_a_connected_replica_says_of_itself_is_known_when_the_actor_that_kept_it_has_forgotten_it() -> None:
    host: Any = RayHost.__new__(RayHost)
    replica = {"replica_id": "r1", "pid": 7, "state": "RUNNING", "node_ip": "127.0.0.1"}
    details = {"applications": {"m": {"deployments": {"m@1.0": {"replicas": [replica]}}}}}
    model: Any = SimpleNamespace(name="m", id="m@1.0")
    host._observed = lambda: (details, ({}, {}))
    (worker,) = host.describe(model, {"r1": {"engine": "numpy", "pid": 2**22 + 1}}).workers
    assert (worker.status, worker.pid, worker.got) == ("READY", 2**22 + 1, {"engine": "numpy"})
