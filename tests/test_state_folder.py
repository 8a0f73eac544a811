"""The state folder says in which format it is: an older one is read, one of a later release is refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.errors import SlotwiseError
from slotwise.files import project


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    return tmp_path


def test_a_new_folder_and_one_of_an_earlier_release_get_the_number(home: Path) -> None:
    (home / "default").mkdir()  # as 0.2.0 left it
    assert project.state_root() == home
    assert project.state_dir() == home / "default"
    assert (home / "format").read_text("ascii") == f"{project.FORMAT}\n"
    assert project.state_root() == home


def test_a_file_that_another_process_just_writes_is_no_later_release(home: Path) -> None:
    (home / "format").touch()
    assert project.state_root() == home


@pytest.mark.parametrize("written", [f"{project.FORMAT + 1}\n", "2026\n", "next", "-1", "\xff", "9" * 5000])
def test_a_later_release_is_refused(home: Path, written: str) -> None:
    (home / "format").write_bytes(written.encode("latin-1"))
    with pytest.raises(SlotwiseError, match="later release"):
        project.state_dir()


def test_the_command_line_says_it_in_one_line(home: Path) -> None:
    (home / "format").write_text("2\n", "ascii")
    command = [sys.executable, "-m", "slotwise.cli", "list"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SLOTWISE_HOME": str(home)})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "SLOTWISE_HOME=FOLDER" in done.stderr
