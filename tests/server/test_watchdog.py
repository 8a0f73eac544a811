"""A server that is stuck is ended and started again with its models as they were, in the foreground and behind --detach."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.server.processes import carries
from slotwise.server.record import ServerRecord
from tests.server.conftest import build_handler
from tests.support.waiting import until

SILENT_S = "6"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store of two versions of a model."""
    store, work = tmp_path_factory.mktemp("archives"), tmp_path_factory.mktemp("models")
    for version in ("1.0", "2.0"):
        build_handler("faults", work / "built" / version, work, version=version).rename(store / f"faults-{version}.mar")
    return store


@pytest.fixture
def folder(tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with such a model store; what is started there is stopped."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    monkeypatch.setenv("SLOTWISE_JAVA_CACHE", "0")
    shutil.copytree(archives, tmp_path / "model_store")
    yield tmp_path
    slotwise(tmp_path, "stop")


def slotwise(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False)


COMMAND = [sys.executable, "-m", "slotwise.cli"]


def record(folder: Path) -> ServerRecord | None:
    return ServerRecord.load(folder / "default")


def registered(found: ServerRecord) -> set[tuple[Any, ...]]:
    """What is registered there; nothing while it does not answer or a model is not ready."""
    try:
        with ManagementClient(found, timeout_s=10) as client:
            models = [live for listed in client.list() for live in client.describe_all(listed.name)]
            assert client.describe("faults").version in ("1.0", "")  # MMS knows none
    except (SlotwiseError, AssertionError):
        return set()
    if any(live.ready_workers != len(live.workers) for live in models):
        return set()
    return {
        (live.name, live.version, live.archive, live.batch_size, live.max_batch_delay, live.ready_workers) for live in models
    }


def change(found: ServerRecord) -> set[tuple[Any, ...]]:
    """Register and scale what `serve` knows nothing of."""
    with ManagementClient(found) as client:
        client.register("faults-2.0.mar", batch_size=3, max_batch_delay=7, initial_workers=1, response_timeout=60)
        client.wait_ready("faults", 1, version="2.0")
        client.register("faults-2.0.mar", name="faults--new", batch_size=2, max_batch_delay=5, initial_workers=1)
        client.wait_ready("faults--new", 1)
        client.scale("faults", 2, version="1.0")
        client.wait_ready("faults", 2, version="1.0")
    return registered(found)


def ended_and_started_again(folder: Path, first: ServerRecord) -> ServerRecord:
    os.kill(first.pid, signal.SIGSTOP)
    workers = [process.pid for process in psutil.process_iter() if belongs(process, first.run_id)]
    again: ServerRecord = until(lambda: (now := record(folder)) and now.run_id != first.run_id and now, "another run")
    assert not [pid for pid in workers if carries(pid, first.run_id)]
    assert again.ports == first.ports
    return again


def belongs(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.environ().get("SLOTWISE_RUN") == run_id and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def watchers(folder: Path) -> list[int]:
    """The processes that watch this folder's server."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if "slotwise.deploy.watchdog" in words and process.environ().get("SLOTWISE_HOME") == str(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.server
def test_behind_detach_a_stuck_server_comes_back_as_it_was(folder: Path) -> None:
    done = slotwise(folder, "serve", "faults-1.0.mar", "--port", "0", "--detach", "--restart-after-s", SILENT_S)
    assert done.returncode == 0, done.stderr
    first = record(folder)
    assert first is not None
    before = change(first)
    assert len(before) == 3
    time.sleep(20)  # the watchdog reads the models every ten seconds, on a busy machine some more
    again = ended_and_started_again(folder, first)
    until(lambda: registered(again) == before, "the same models")
    with InferenceClient(again) as inference:
        assert inference.predict("faults", b"3").status_code == 200
    assert len(watchers(folder)) == 1
    assert slotwise(folder, "stop").returncode == 0
    assert watchers(folder) == []
    assert not again.alive()
    assert "started again" in (folder / "default" / "watchdog.log").read_text("utf-8")


@pytest.mark.server
@pytest.mark.parametrize("kind", ["torchserve", pytest.param("mms", marks=pytest.mark.slow)])
def test_in_the_foreground_too_and_ctrl_c_ends_what_serves_then(folder: Path, kind: str) -> None:
    log = folder / "log"
    with log.open("wb") as output:
        words = ["serve", "faults-1.0.mar", "--server", kind, "--port", "0", "--restart-after-s", SILENT_S]
        serving = subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=output, stderr=output)
    until(lambda: "Ctrl-C" in log.read_text("utf-8"), "it serves")
    first = record(folder)
    assert first is not None
    time.sleep(6)
    again = ended_and_started_again(folder, first)
    until(lambda: "serves again" in log.read_text("utf-8"), "its models")
    serving.send_signal(signal.SIGINT)
    assert serving.wait(120) == 0, log.read_text("utf-8")
    assert not again.alive()
    assert watchers(folder) == []


@pytest.mark.server
@pytest.mark.slow
def test_stop_while_it_is_started_again_leaves_nothing(folder: Path) -> None:
    assert slotwise(folder, "serve", "faults-1.0.mar", "--port", "0", "--detach", "--restart-after-s", SILENT_S).returncode == 0
    first = record(folder)
    assert first is not None
    time.sleep(6)
    os.kill(first.pid, signal.SIGSTOP)
    log = folder / "default" / "watchdog.log"
    until(lambda: "started again" in log.read_text("utf-8"), "the start")
    time.sleep(1.5)
    done = slotwise(folder, "stop", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "default"
    assert watchers(folder) == []
    left = [process for process in psutil.process_iter() if str(folder) in environment(process).get("SLOTWISE_STATE", "")]
    assert left == []


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}
