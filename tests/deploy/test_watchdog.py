"""When a server counts as stuck: it answered, it has answered nothing for a while, and nobody stops it."""

from __future__ import annotations

import dataclasses
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import inspect
from slotwise.backends.management.models import HostedModel
from slotwise.client.live_model import LiveModel, live_model
from slotwise.deploy import start_again, watchdog
from slotwise.deploy.drift import DeployedModel
from slotwise.deploy.takeover import registration_of
from slotwise.deploy.watchdog import Watchdog
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server import default_versions
from slotwise.server.record import Kind, ServerRecord
from tests.support.records import server_record

FIXTURES = Path(__file__).parents[1] / "fixtures"


class Pinged(http.server.BaseHTTPRequestHandler):
    """Refuses whatever it is asked: that is an answer, too."""

    def do_GET(self) -> None:
        self.send_error(400)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerRecord]:
    """The record of something that answers pings."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    monkeypatch.setattr(Watchdog, "_read_models", lambda dog: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pinged) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = tmp_path / "default"
        folder.mkdir()
        found = server_record(folder, ports=Ports.at(server.server_port), model_store=tmp_path)
        found.save()
        yield found
        server.shutdown()


class ReadyAtOnce:
    """In a ManagementClient's place, of any server: what is registered is ready."""

    def __init__(self, server: ServerRecord) -> None:
        """Nothing is asked of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def wait_ready(self, *asked: object, **also: object) -> None:
        """It is."""


class Clock:
    """Every look is two seconds later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += watchdog.PING_EVERY_S
        return self.now


def lives(record: ServerRecord, *versions: str) -> list[LiveModel]:
    """A model's name and version each, as a server tells of them."""
    return [
        live_model({"modelName": name, "modelVersion": version, "modelUrl": f"{name}-{version}.mar"}, record)
        for name, version in versions
    ]


def looks(dog: Watchdog, count: int) -> list[bool]:
    return [dog.stuck() for _ in range(count)]


def gone(record: ServerRecord) -> ServerRecord:
    """The same run, where nothing answers."""
    return dataclasses.replace(record, ports=Ports.free())


def test_one_that_answers_is_not_stuck_and_one_that_goes_silent_is_after_a_while(record: ServerRecord) -> None:
    dog = Watchdog(record, 10, Clock())
    assert not any(looks(dog, 20))
    dog.record = gone(record)
    assert looks(dog, 6) == [False] * 4 + [True] * 2
    dog.record = record
    assert not any(looks(dog, 2))


def test_one_that_never_answered_is_still_starting(record: ServerRecord) -> None:
    assert not any(looks(Watchdog(gone(record), 10, Clock()), 50))


@pytest.mark.parametrize("kind", ["slotwise", "ray", "triton"])
def test_a_host_that_dies_before_it_was_asked_was_up_all_the_same(record: ServerRecord, kind: Kind) -> None:
    """`serve --detach` has seen that, and a moment later it is gone."""
    host = gone(dataclasses.replace(record, kind=kind, pid=2**22 + 1, started=1.0))
    host.save()
    assert not any(looks(Watchdog(host, 10, Clock()), 5))
    assert looks(Watchdog(host, 10, Clock(), was_up=True), 1) == [True]
    still_starting = dataclasses.replace(host, pid=0, started=None)
    assert not any(looks(Watchdog(still_starting, 10, Clock(), was_up=True), 5))


def test_a_machine_that_was_asleep_is_asked_more_than_once(record: ServerRecord) -> None:
    clock = Clock()
    dog = Watchdog(record, 10, clock)
    dog.stuck()
    dog.record, clock.now = gone(record), 10_000.0
    assert looks(dog, 3) == [False, False, True]


def test_three_pings_in_vain_take_no_longer_than_it_may_be_silent(
    record: ServerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []
    monkeypatch.setattr(watchdog, "_answers", lambda record, patience_s: patience.append(patience_s) or True)
    for silent_s in (60, 6):
        Watchdog(record, silent_s, Clock()).stuck()
    assert patience == [watchdog.PING_S, 2.0]


@pytest.mark.parametrize("change", [{"stopping": True}, {"run_id": "another"}])
def test_one_that_is_stopped_or_was_replaced_is_left_alone(record: ServerRecord, change: dict[str, object]) -> None:
    dog = Watchdog(record, 10, Clock())
    dog.stuck()
    dog.record = gone(record)
    dataclasses.replace(record, **change).save()  # type: ignore[arg-type]
    assert not any(looks(dog, 20))
    (record.state_dir / "server.json").unlink()
    assert not any(looks(dog, 20))


def test_a_restart_says_where_the_archive_is_another_one_by_now(record: ServerRecord) -> None:
    described = {"modelName": "sums", "modelVersion": "1.0", "modelUrl": "sums.mar"}
    archive = Path(shutil.copy(FIXTURES / "sums-0.2.0.mar", record.model_store / "sums.mar"))
    now, said = inspect(archive), list[str]()
    for content in (now.content, "", "f" * 64):
        workers = [{"id": "1", "pid": 1, "status": "READY", "memoryUsage": 0, "got": {"archive": content}}]
        live = live_model({**described, "modelVersion": now.version, "workers": workers}, record)
        (model,) = start_again._deployed(record, [live], said.append)
        assert model.info.content == now.content
    (line,) = said
    assert (
        line == f"sums {now.version} serves another archive than it ran: sums.mar holds {now.content[:12]} now, not {'f' * 12}"
    )


@pytest.mark.parametrize(("told", "expected"), [({"responseTimeout": 30}, 30), ({}, 900)])
def test_a_restart_keeps_a_models_response_timeout(
    record: ServerRecord, monkeypatch: pytest.MonkeyPatch, told: dict[str, int], expected: int
) -> None:
    """The one that the server says; where it says none (MMS), what the archive wishes and not what the server began with."""
    registered = []

    class Client(ReadyAtOnce):
        def register(self, archive: str, **settings: object) -> None:
            registered.append(settings["response_timeout"])

    wishes = {"profiles": {"cpu": {"response_timeout_s": 900}}}
    info = ArchiveInfo(Path("slow.mar"), 1, "", {"model": {"modelName": "slow", "modelVersion": "1.0"}}, wishes)
    live = live_model({"modelName": "slow", "modelVersion": "1.0", "modelUrl": "slow.mar", **told}, record)
    monkeypatch.setattr(start_again, "ManagementClient", Client)
    profile = load_profile("cpu", environ={}, cores=0)
    start_again._register(record, [DeployedModel(live, info)], profile, can_register=True, say=lambda said: None)
    before = registration_of(live, 900)
    assert (registered, before["response_timeout"]) == ([expected], expected)


def test_a_host_that_dies_at_once_after_it_was_started_again_loses_no_model(
    record: ServerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, given = gone(dataclasses.replace(record, kind="slotwise", run_id="again")), []
    monkeypatch.setattr(start_again, "start_again", lambda record, models, say: given.append(models) or again)
    monkeypatch.setattr(watchdog.processes, "end", lambda *_: None)
    dog = Watchdog(record, 10, Clock())
    dog.models = ours = tuple(lives(record, "a1", "b1"))
    again.save()
    for _ in range(2):
        dog = dog.restart(lambda said: None)
        assert dog.stuck()  # its process is gone, and nobody has asked it yet
    assert given == [ours] * 2


def registered(name: str, version: str, workers: int = 1) -> HostedModel:
    """As a host of ours has registered it."""
    return HostedModel(
        name=name,
        version=version,
        info=ArchiveInfo(Path(f"{name}-{version}.mar"), 1, "", {}, {}),
        archive=f"{name}-{version}.mar",
        profile=load_profile("cpu", environ={}, cores=0),
        batch_size=4,
        max_batch_delay_ms=2.5,
        min_workers=workers,
        max_workers=3,
        response_timeout_s=7,
    )


def test_what_is_registered_is_what_the_host_noted_last(record: ServerRecord) -> None:
    """Of what was read some seconds ago only the number of workers counts, where nobody has set another one since."""

    def read(name: str, version: str, workers: int, least: int = 1) -> LiveModel:
        said = {"modelName": name, "modelVersion": version, "modelUrl": f"{name}-{version}.mar", "batchSize": 4}
        said |= {"maxBatchDelay": 2.5, "minWorkers": least, "maxWorkers": 3, "responseTimeout": 7, "workers": [{}] * workers}
        return live_model(said, record)

    before = (read("a", "1", 1), read("a", "2", 2), read("b", "1", 3), read("gone", "1", 1))
    assert watchdog.as_noted(before, record) == before  # it has noted nothing
    now = [registered("a", "2"), registered("a", "1"), registered("b", "1", 0), registered("c", "5", 2)]
    default_versions.note(record, now)
    back = watchdog.as_noted(before, record)
    numbers = [(live.name, live.version, len(live.workers)) for live in back]
    assert numbers == [("a", "2", 2), ("a", "1", 1), ("b", "1", 0), ("c", "5", 2)]
    c = back[-1]
    assert (c.archive, c.batch_size, c.max_batch_delay, c.response_timeout) == ("c-5.mar", 4, 2.5, 7)
    begun = watchdog.as_noted(before, record, begun=False)
    assert [(live.name, live.version) for live in begun] == [("a", "2"), ("a", "1"), ("b", "1"), ("c", "5"), ("gone", "1")]
    another = dataclasses.replace(record, run_id="another")
    assert watchdog.as_noted(before, another) == before


def test_where_the_disk_is_full_what_was_noted_before_is_believed_no_longer(
    record: ServerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_versions.note(record, [registered("a", "1")])

    def full(texts: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(default_versions, "write_together", full)
    default_versions.note(record, [registered("a", "1"), registered("b", "1")])
    assert default_versions.noted(record) is None


def test_a_host_that_dies_while_its_models_come_back_loses_none(record: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had noted only some of them."""
    again, given = gone(dataclasses.replace(record, kind="slotwise", run_id="again")), []

    def start(record: ServerRecord, models: tuple[LiveModel, ...], say: object) -> ServerRecord:
        given.append([live.name for live in models])
        again.save()
        default_versions.note(again, [registered("a", "1")])
        return again

    monkeypatch.setattr(start_again, "start_again", start)
    monkeypatch.setattr(watchdog.processes, "end", lambda *_: None)
    default_versions.note(record, [registered("a", "1"), registered("b", "1")])
    dog = Watchdog(record, 10, Clock())
    for _ in range(2):
        dog = dog.restart(lambda said: None)
    assert given == [["a", "b"]] * 2


def test_what_a_server_said_before_it_died_is_kept(record: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it again would delete its log."""
    (record.state_dir / "server.log").write_text("Fatal Python error: Segmentation fault\n")
    monkeypatch.setattr(start_again, "start_again", lambda record, models, say: record)
    monkeypatch.setattr(watchdog.processes, "end", lambda *_: None)
    Watchdog(record, 10, Clock()).restart(lambda said: None)
    assert "Segmentation" in (record.state_dir / "server.before.log").read_text()


def test_a_full_disk_is_no_reason_to_start_nothing_again(record: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    tries, said = [], list[str]()

    def start(record: ServerRecord, models: object, say: object) -> ServerRecord:
        tries.append(record)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return record

    monkeypatch.setattr(start_again, "start_again", start)
    monkeypatch.setattr(watchdog.processes, "end", lambda *_: None)
    monkeypatch.setattr(watchdog, "AGAIN_S", 0.0)
    watchdog._restart(Watchdog(record, 10, Clock()), said.append)
    assert len(tries) == 2
    assert "it did not start: [Errno 28] No space left on device" in said
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        watchdog._log("a line")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_without_its_default_version_a_model_does_not_come_back(record: ServerRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version would answer those who name none, and with 200."""
    refused, registered = {"b-2.mar"}, list[str]()

    class Client(ReadyAtOnce):
        def register(self, archive: str, **settings: object) -> None:
            if archive in refused:
                raise SlotwiseError("the disk is full")
            registered.append(archive)

    def found(record: ServerRecord, live: LiveModel) -> DeployedModel:
        if live.archive in ("a-2.mar", "c-1.mar"):
            raise SlotwiseError("its archive is gone")
        manifest = {"model": {"modelName": live.name, "modelVersion": live.version}}
        return DeployedModel(live, ArchiveInfo(Path(live.archive), 1, "", manifest, {}))

    said = list[str]()
    monkeypatch.setattr(start_again, "ManagementClient", Client)
    monkeypatch.setattr(start_again, "deployed", found)
    models = start_again._deployed(record, lives(record, "a2", "a1", "b2", "b1", "c2", "c1"), said.append)
    start_again._register(record, models, load_profile("cpu", environ={}), can_register=True, say=said.append)
    assert registered == ["c-2.mar"]
    assert [line for line in said if "left out" in line] == [
        "a 2 is left out: its archive is gone",
        "a 1 is left out: it is not the default version, and would be now",
        "c 1 is left out: its archive is gone",
        "b 2 is left out: the disk is full",
        "b 1 is left out: it is not the default version, and would be now",
    ]
