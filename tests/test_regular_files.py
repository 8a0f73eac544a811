"""Only regular files are read and written, and one server of a name is started at a time: else one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.errors import SlotwiseError
from slotwise.files.disk import OnlyOne
from tests.archive.foreign_archives import FUNCTION, torch_archive


def slotwise(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "slotwise.cli", *words]
    environ = {**os.environ, "SLOTWISE_HOME": str(folder / "state")}
    ended = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("command", ["guard", "inspect", "check"])
@pytest.mark.parametrize("what", [".", "/dev/zero", "/dev/null", "pipe", "pipe.mar", "folder.mar", ""])
def test_what_is_no_file_is_one_line(tmp_path: Path, command: str, what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.mar")
    (tmp_path / "folder.mar").mkdir()
    code, said = slotwise(tmp_path, command, what)
    assert (code, said.count("error: "), "Traceback" in said) == (1, 1, False), said


@pytest.mark.parametrize("out", ["/dev/full", ".", "pipe.mar"])
def test_what_is_no_file_is_not_written(tmp_path: Path, out: str) -> None:
    os.mkfifo(tmp_path / "pipe.mar")
    theirs = torch_archive(tmp_path, FUNCTION, function="handle")
    code, said = slotwise(tmp_path, "guard", str(theirs), "--out", out)
    assert (code, said.count("error: "), "Traceback" in said) == (1, 1, False), said
    assert not list(tmp_path.glob(".*partial"))


def test_of_two_servers_of_a_name_one_is_started(tmp_path: Path) -> None:
    lock = tmp_path / "state" / "default" / "server.starting"
    held = OnlyOne(lock, "")
    code, said = slotwise(tmp_path, "serve", "nosuch")
    assert code == 1
    assert "error: a server named 'default' is being started already" in said
    with pytest.raises(SlotwiseError, match="again"):
        OnlyOne(lock, "again")
    held.release()
    assert "there is no model 'nosuch'" in slotwise(tmp_path, "serve", "nosuch")[1]
