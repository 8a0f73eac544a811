"""What doctor says of the servers, without starting one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slotwise.commands.doctor import _lines
from slotwise.doctor import diagnosis
from slotwise.errors import EXTRAS
from slotwise.profiles.ports import Ports
from slotwise.server.record import Kind
from tests.client.test_management import record, write_keys

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_every_extra_and_every_server_is_known() -> None:
    assert set(EXTRAS.values()) <= set(diagnosis.BRINGS)
    assert set(diagnosis.SERVERS.values()) == set(Kind.__args__)  # type: ignore[attr-defined]
    assert set(diagnosis.APART) <= set(diagnosis.SERVERS)


def test_a_server_is_named_with_its_version_or_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "ray":
            return "2.60.0"
        raise importlib.metadata.PackageNotFoundError(package)

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: find("sys" if name == "ray" else name, *more))
    found = {**diagnosis.machine(), **diagnosis.installed(), "running": [], "requests": {}}
    lines = _lines(found)
    assert "servers     torchserve none, multi-model-server none, ray 2.60.0, nvidia-pytriton none, slotwise none" in lines
    at = lines.index("missing     triton (nvidia-pytriton): the server Triton; Linux")
    assert lines[at + 1].strip() == f"{sys.executable} -m pip install --no-deps nvidia-pytriton==0.7.0"
    assert not [line for line in lines if line.startswith("missing     ray ")]


def test_an_archive_with_the_worker_of_an_earlier_release_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert diagnosis.old_archives() == []
    assert not list(tmp_path.iterdir()), "doctor makes nothing"
    (tmp_path / "model_store").mkdir()
    shutil.copy(FIXTURES / "sums-0.2.0.mar", tmp_path / "model_store" / "sums.mar")
    (tmp_path / "model_store" / "broken.mar").write_text("no archive")
    (line,) = diagnosis.old_archives()
    assert line.endswith("carries the worker of slotwise 0.2.0: `slotwise renew model_store/sums.mar` puts today's in")


def test_a_missing_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    (ray,) = [extra for extra in diagnosis.installed()["missing"] if extra["extra"] == "ray"]
    assert ray["get"].endswith('pip install "slotwise[ray]"')


def test_a_server_that_says_nothing_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LOOK_S", 0.2)
    write_keys(tmp_path, "some")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hung = replace(record(tmp_path, "slotwise"), ports=replace(Ports(), management=port))
        monkeypatch.setattr(diagnosis, "all_running", lambda: [hung])
        [server] = diagnosis.running_servers()
    assert server["notes"] == [f"the server at http://127.0.0.1:{port} did not answer in time"]
