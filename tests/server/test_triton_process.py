"""What goes wrong with Triton before it starts: one line, and what to do. Needs no Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.server import triton_process
from slotwise.server.lifecycle import check_can_start


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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_a_secret_is_overwritten_on_the_command_line() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "--token=hush-hush", "rest"], stdin=subprocess.PIPE) as process:
        shown = Path(f"/proc/{process.pid}/cmdline")
        while b"hush-hush" not in shown.read_bytes():  # it is still this process
            pass
        try:
            assert triton_process.hide(process.pid, ["hush-hush"])
            assert shown.read_bytes().endswith(b"--token=*********\0rest\0")
        finally:
            process.communicate(b"\n")
    assert not triton_process.hide(process.pid, ["hush-hush"])


def test_shared_memory_of_a_run_is_found_by_its_name() -> None:
    file = Path("/dev/shm", f"{triton_process.shared_memory('a' * 32)}-1")
    if not file.parent.is_dir():
        pytest.skip("there is no /dev/shm")
    file.touch()
    triton_process.remove_shared_memory("b" * 32)
    assert file.exists()
    triton_process.remove_shared_memory("a" * 32)
    assert not file.exists()
