"""What `stop` ends and takes away, and whose server it leaves alone."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise.commands.server import stop as stop_command
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.server import lifecycle, process_record
from slotwise.server.record import ServerRecord
from tests.support.sleeping_servers import sleeping_servers

Start = Callable[[], ServerRecord]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project" / ".slotwise"
    monkeypatch.setenv("SLOTWISE_HOME", str(folder))
    return folder


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a process that stands for the server "default"."""
    with sleeping_servers("slotwise") as started:
        yield lambda: started("default", Ports())


def test_the_folder_of_the_server_that_has_taken_its_place_is_left_to_it(start: Start) -> None:
    first = start()
    second = start()
    lifecycle.stop(first)
    assert not first.alive()
    assert second.alive()
    assert second.tmp_dir.is_dir()
    lifecycle.stop(second)
    assert not second.tmp_dir.exists()


def test_a_copy_of_the_folder_stops_nothing_and_a_link_to_it_does(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = start()
    process_record.ProcessRecord(name="default", pid=record.pid, started=record.started).write(home / "default/watchdog.json")
    copied = shutil.copytree(home.parent, home.parent.with_name("copied")) / ".slotwise"
    monkeypatch.setenv("SLOTWISE_HOME", str(copied))
    stop_command()
    assert record.alive()
    assert record.tmp_dir.is_dir()
    assert f"{copied / 'default/server.json'} is a copy" in capsys.readouterr().err
    home.parent.with_name("link").symlink_to(home.parent)
    monkeypatch.setenv("SLOTWISE_HOME", str(home.parent.with_name("link") / ".slotwise"))
    (home / "default/watchdog.json").unlink()
    stop_command()
    assert not record.alive()


def test_a_folder_that_was_moved_still_stops_its_server(home: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    record = start()
    monkeypatch.setenv("SLOTWISE_HOME", str(home.parent.rename(home.parent.with_name("moved")) / ".slotwise"))
    stop_command()
    assert not record.alive()


def test_another_users_server_is_not_said_to_be_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    record = start()

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refused)
        patched.setattr(lifecycle, "end", lambda run_id, patience_s: None)
        with pytest.raises(SlotwiseError, match=r"is another user's: it runs on"):
            stop_command()
    assert ServerRecord.load(record.state_dir) == record
    assert record.tmp_dir.is_dir()


def test_one_that_does_not_end_keeps_its_record(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    record = start()
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: None)
        patched.setattr(lifecycle, "end", lambda run_id, patience_s: None)
        patched.setattr(lifecycle, "DYING_S", 0.0)
        with pytest.raises(SlotwiseError, match="does not end: it runs on"):
            stop_command()
    assert record.tmp_dir.is_dir()
    assert ServerRecord.load(record.state_dir) is not None


def test_one_that_is_just_ending_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large process that was killed gives its memory back first: then it is not known by its mark any more."""
    record = start()
    monkeypatch.setattr(lifecycle, "end", lambda run_id, patience_s: None)
    stop_command()
    assert not record.alive()


@pytest.mark.parametrize("replaced", [True, False])
def test_one_that_is_being_replaced_has_not_ended_by_itself(start: Start, replaced: bool) -> None:
    first = start()
    dataclasses.replace(first, pid=0, started=None, stopping=not replaced, run_id="next" if replaced else first.run_id).save()
    os.kill(first.pid, signal.SIGKILL)
    assert lifecycle.wait_until_ended(first) == first
    assert (lifecycle.successor(first, patient=False) is not None) == replaced


def test_one_that_ends_by_itself_is_said_to(start: Start) -> None:
    first = start()
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(SlotwiseError, match="ended by itself"):
        lifecycle.wait_until_ended(first)
