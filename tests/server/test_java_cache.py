"""Java's cache: who may write it, when it is used, and that a server starts whatever is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slotwise.client.management import ManagementClient
from slotwise.deploy import java_training
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.java import cache as java_cache
from slotwise.server.java.start_java import changed
from slotwise.server.lifecycle import start, stop
from slotwise.server.processes import start_time


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java 25 that cannot run, and a folder for caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(java_cache.SWITCH)
    java = tmp_path / "java"
    for name, text in (("bin/java", ""), ("lib/modules", ""), ("release", 'JAVA_VERSION="25.0.2"\n')):
        (java / name).parent.mkdir(parents=True, exist_ok=True)
        (java / name).write_text(text)
    return java


def made(home: Path) -> Path:
    """A cache that is there, as `train` leaves it."""
    file = java_cache.wanted("torchserve", home)
    assert file is not None
    file.touch(0o600)
    return file


def test_java_gets_its_options_and_a_python_and_loses_the_current_folder_only() -> None:
    server = ["org.pytorch.serve.ModelServer", "--python"]
    theirs = ["java", "-Da=b", "-cp", ".:/ts/frontend/*:/plugins/*", *server, "/usr/bin/python", "-ncs"]
    ours = ["java", "-XX:AOTCache=f", "-Da=b", "-cp", "/ts/frontend/*:/plugins/*", *server, "/bin/ours", "-ncs"]
    assert changed(theirs, "/bin/ours", ["-XX:AOTCache=f"]) == ours


def test_a_cache_is_used_once_it_is_there_and_is_its_owners_alone(home: Path) -> None:
    assert java_cache.options("torchserve", home) == []
    file = made(home)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert java_cache.options("torchserve", home)[0] == f"-XX:AOTCache={file}"
    assert java_cache.wanted("torchserve", home) is None
    file.chmod(0o620)
    assert java_cache.options("torchserve", home) == []
    file.chmod(0o600)
    file.parent.chmod(0o750)
    assert java_cache.options("torchserve", home) == []
    file.parent.chmod(0o700)
    file.rename(file.with_suffix(".real"))
    file.symlink_to(file.with_suffix(".real"))
    assert java_cache.options("torchserve", home) == []


def test_another_java_or_server_has_another_cache(home: Path) -> None:
    before = java_cache.cache_file("torchserve", home)
    assert before not in (None, java_cache.cache_file("mms", home))
    (home / "lib" / "modules").write_text("of an update")
    assert java_cache.cache_file("torchserve", home) not in (None, before)


def test_what_nobody_used_for_a_month_is_deleted(home: Path) -> None:
    used, unused = made(home), java_cache.private_folder() / "torchserve-0.aot"
    unused.touch()
    for file in (used, unused):
        os.utime(file, (0, 0))
    assert java_cache.options("torchserve", home)
    java_cache.delete_unused()
    assert list(used.parent.iterdir()) == [used]


def test_there_is_none_for_what_is_not_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_cache.cache_file("ray", home) is None
    with monkeypatch.context() as patch:
        patch.setitem(java_cache.KNOWN, "torchserve", ("torchserve", "0.13.0"))
        assert java_cache.cache_file("torchserve", home) is None
    with monkeypatch.context() as patch:
        patch.setenv(java_cache.SWITCH, "0")
        assert java_cache.cache_file("torchserve", home) is None
    (home / "release").write_text('JAVA_VERSION="17.0.9"\n')
    assert java_cache.cache_file("torchserve", home) is None
    (home / "release").unlink()
    assert java_cache.cache_file("torchserve", home) is None


def test_one_that_failed_or_made_java_crash_is_not_made_again_at_once(home: Path, tmp_path: Path) -> None:
    file = made(home)
    java_cache.forget_after_crash("torchserve", home, tmp_path)
    assert file.exists()
    (tmp_path / "hs_err_pid7.log").touch()
    java_cache.forget_after_crash("torchserve", home, tmp_path)
    assert not file.exists()
    assert java_cache.wanted("torchserve", home) is None
    hours_ago = file.with_suffix(".failed").stat().st_mtime - 2 * java_cache.RETRY_S
    os.utime(file.with_suffix(".failed"), (hours_ago, hours_ago))
    assert java_cache.wanted("torchserve", home) == file


@pytest.mark.parametrize("ours", [True, False])
def test_a_stop_ends_the_training_that_the_start_began_and_no_other_process(tmp_path: Path, ours: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        began = start_time(process.pid) if ours else 1.0
        (tmp_path / java_training.PROCESS).write_text(f"{process.pid} {began}")
        java_training.end_training(tmp_path)
        assert (psutil.pid_exists(process.pid) and psutil.Process(process.pid).is_running()) is not ours
        process.kill()
    assert not list(tmp_path.iterdir())
    java_training.end_training(tmp_path)  # nothing to end


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_starts_from_its_cache_and_without_one_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOME_PASSWORD", "correct-horse-battery")
    monkeypatch.delenv(java_cache.SWITCH)
    monkeypatch.setattr(java_training, "REQUESTS", 200)
    with monkeypatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", "set by train")
        cache = java_training.train("torchserve")
        assert java_training.train("torchserve") is None
    assert cache is not None
    assert sorted(file.suffix for file in cache.parent.iterdir()) == [".aot", ".lock"]
    assert b"correct-horse" not in cache.read_bytes()

    def is_mapped() -> bool:
        record = start("warm", "torchserve", load_profile("cpu"), model_store=tmp_path, ports=Ports.free(), models={})
        try:
            with ManagementClient(record) as management:
                assert list(management.list()) == []
            return str(cache) in {entry.path for entry in psutil.Process(record.pid).memory_maps()}
        finally:
            stop(record)

    assert is_mapped()
    cache.write_bytes(cache.read_bytes()[:100_000])
    assert not is_mapped()
