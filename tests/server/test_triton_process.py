"""What goes wrong with Triton before it starts: one line, and what to do. Needs no Triton."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.server import hidden_arguments
from slotwise.server.lifecycle import check_can_start
from slotwise.server.processes import MARK
from slotwise.server.triton import process as triton_process
from slotwise.server.triton import server as triton_server
from tests.support.waiting import until


def install(monkeypatch: pytest.MonkeyPatch, root: Path | None) -> None:
    """Let the package pytriton be in this folder, or nowhere."""
    found = None if root is None else SimpleNamespace(submodule_search_locations=[str(root)])
    monkeypatch.setattr(triton_process.importlib.util, "find_spec", lambda name: found)


def test_without_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    install(monkeypatch, None)
    with pytest.raises(SlotwiseError, match="Triton is not installed") as refused:
        check_can_start("default", "triton", Ports.free())
    assert refused.value.hint == f"{sys.executable} -m pip install --no-deps nvidia-pytriton==0.7.0"


def test_a_triton_that_is_not_whole_or_not_for_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    with pytest.raises(SlotwiseError, match="there is no tritonserver in"):
        triton_process.find()
    for path in ("tritonserver/bin/tritonserver", "tritonserver/python_backend_stubs/2.7/triton_python_backend_stub"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    with pytest.raises(SlotwiseError, match=r"this Triton runs no models of Python 3\.\d+") as refused:
        triton_process.find()
    assert refused.value.hint == "it knows: 2.7"


PROGRAM = "import os, sys; print(sys.argv[1:], os.environ['KEPT'], flush=True); input()"


def seen(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def everybody_sees(found: set[bytes], ended: threading.Event) -> None:
    """The arguments of all processes that there are at any time."""
    while not ended.is_set():
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found.add(seen(int(folder.name)))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_a_secret_argument_is_never_seen_in_the_list_of_processes() -> None:
    found, ended = set[bytes](), threading.Event()
    watching = threading.Thread(target=everybody_sees, args=(found, ended))
    watching.start()
    command = [sys.executable, "-c", PROGRAM, "first", "--token=hush-hush", "--other", "x=hush-hush,y"]
    process = hidden_arguments.start(command, ["hush-hush"], {"KEPT": "kept"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process is not None
    with process:
        assert process.stdout
        assert process.stdout.readline() == b"['first', '--token=hush-hush', '--other', 'x=hush-hush,y'] kept\n"
        ended.set()
        watching.join()
        assert b"\0first\0(hidden 4)\0--other\0(hidden 6)\0" in seen(process.pid)
        assert b"hush-hush" in Path(f"/proc/{process.pid}/environ").read_bytes()  # which its owner can read, and its children
        assert hidden_arguments.hide(process.pid, ["hush-hush"])
        assert b"hush-hush" not in Path(f"/proc/{process.pid}/environ").read_bytes()
        process.communicate(b"\n")
    assert not any(b"hush-hush" in words for words in found)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_where_nothing_may_be_hidden_it_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_arguments, "TRACED", f"import os; os._exit({hidden_arguments.NOT_ALLOWED})")
    assert hidden_arguments.start(["true", "hush-hush"], ["hush-hush"], {}) is None
    with subprocess.Popen([sys.executable, "-c", "input()", "--token=hush-hush", "rest"], stdin=subprocess.PIPE) as process:
        while b"hush-hush" not in seen(process.pid):  # it is still this process
            pass
        try:
            assert hidden_arguments.hide(process.pid, ["hush-hush"])
            assert seen(process.pid).endswith(b"--token=*********\0rest\0")
        finally:
            process.communicate(b"\n")
    assert not hidden_arguments.hide(process.pid, ["hush-hush"])


def test_a_program_that_is_not_there_is_not_started() -> None:
    assert hidden_arguments.start(["/nosuch", "hush-hush"], ["hush-hush"], {}, stderr=subprocess.DEVNULL) is None


def test_what_clouds_open_is_closed_where_this_triton_knows_it(tmp_path: Path) -> None:
    files = triton_process.TritonFiles(tmp_path / "tritonserver", tmp_path, tmp_path, tmp_path)
    files.server.write_text("#!/bin/sh\necho '  --allow-vertex-ai <boolean>'\necho '\tsee --allow-other' >&2\n")
    files.server.chmod(0o755)
    assert triton_process.known_options(files) == {"--allow-vertex-ai"}


def test_shared_memory_of_a_run_is_found_by_its_name() -> None:
    file = Path("/dev/shm", f"{triton_process.shared_memory('a' * 32)}-1")
    if not file.parent.is_dir():
        pytest.skip("there is no /dev/shm")
    file.touch()
    triton_process.remove_shared_memory("b" * 32)
    assert file.exists()
    triton_process.remove_shared_memory("a" * 32)
    assert not file.exists()


class Loading:
    """Stands for Triton's API. most: instances that there is memory for. loaded: those that there are. asked: for so many."""

    def __init__(self) -> None:
        self.most, self.loaded, self.asked, self.unloads = 2, 0, 0, 0

    def load(self, name: str) -> None:
        if self.asked > self.most:
            raise SlotwiseError("out of memory")
        self.loaded = self.asked

    def unload(self, name: str) -> None:
        self.loaded, self.unloads = 0, self.unloads + 1

    def busy(self) -> set[str]:
        return {"m"} if self.loaded else set()


def test_a_load_that_fails_leaves_what_serves_and_what_was_lost_is_loaded_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api = Loading()
    monkeypatch.setattr(triton_server, "LOOK_S", 0.01)
    monkeypatch.setattr(triton_server, "AGAIN_S", 0.05)
    monkeypatch.setattr(triton_server, "write_config", lambda info, *_, **__: vars(api).update(asked=info))
    host: Any = triton_server.Triton.__new__(triton_server.Triton)
    host.record, host.repository = SimpleNamespace(state_dir=tmp_path), tmp_path
    host.models, host.loading, host.failures, host.serving, host.lost, host.replaced = {}, {}, {}, {}, {}, {}
    host.instances, code = tmp_path / "instances", tmp_path / "m" / "1" / "model.py"
    code.parent.mkdir(parents=True)
    code.touch()
    os.utime(code, (0, 0))
    host.change, host.closing, host.api = threading.RLock(), threading.Event(), api
    host.process = SimpleNamespace(poll=lambda: None)
    host._workers = lambda name: ["an instance"] * api.loaded
    host._options = lambda model: {}

    def model(count: int) -> Any:
        return SimpleNamespace(name="m", min_workers=count, info=count, as_registered=None, response_timeout_s=0.5)

    threading.Thread(target=host._look_after, daemon=True).start()
    try:
        host.scale(model(2))
        until(lambda: api.loaded == 2 and not host.lost, "it is not loaded")
        host.scale(model(9))
        until(lambda: host.failures == {"m": "out of memory"}, "it did not fail")
        until(lambda: api.asked == 2, "what serves is not written down again")
        time.sleep(0.1)
        assert (api.loaded, api.unloads, api.asked) == (2, 0, 2)
        assert code.stat().st_mtime == 0
        api.most, api.loaded = 1, 1  # one has died, and something else has taken the memory
        until(lambda: code.stat().st_mtime > 0 and host.failures == {"m": "out of memory"}, "it is not loaded anew")
        assert (api.loaded, api.unloads) == (1, 0)  # what is left goes on
        api.most = 2
        until(lambda: api.loaded == 2 and not host.failures, "it is not loaded again")
        assert api.unloads == 0
    finally:
        host.closing.set()


def test_instances_in_whose_place_there_are_others_may_finish_a_batch_and_are_ended(tmp_path: Path) -> None:
    """Triton does not end them, where one of them has died with something in hand: it waits for that."""
    host: Any = triton_server.Triton.__new__(triton_server.Triton)
    host.record, host.instances = SimpleNamespace(state_dir=tmp_path, run_id="of this test"), tmp_path / "instances"
    host.replaced, host.closing = {}, threading.Event()
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "of this test"})
    try:
        file = host.instances / "m" / f"m_0.{process.pid}"
        file.parent.mkdir(parents=True)
        file.write_text(str(process.pid))
        until(lambda: len(host._workers("m")) == 1, "it is not there")
        host._let_go(SimpleNamespace(name="m", response_timeout_s=3.0), {file.name})
        assert host._workers("m") == []
        assert process.poll() is None
        until(lambda: process.poll() is not None and not file.exists() and not host.replaced["m"], "it is not ended")
    finally:
        process.kill()
        process.wait()
