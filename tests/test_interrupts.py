"""Where a signal lands, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, time
from slotwise import interrupts

class Resource:
    def __enter__(self): self.wait("opened")
    def __exit__(self, *error): self.wait("closed")
    def wait(self, done):
        if done == {where!r}:
            os.kill(os.getpid(), signal.SIGINT)
            until = time.monotonic() + {lasts}
            while time.monotonic() < until:
                pass
        print(done)

interrupts.install()
began = time.monotonic()
try:
    with interrupts.let_through():
        with Resource():
            pass
        time.sleep(10)
except KeyboardInterrupt:
    print("landed", "at once" if time.monotonic() - began < 5 else "late")
"""


def printed(where: str, lasts: float) -> list[str]:
    """What it says where a signal comes while it opens or closes, which takes so many seconds."""
    script = SCRIPT.format(where=where, lasts=lasts)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout.splitlines()


@pytest.mark.parametrize("where", ["opened", "closed"])
def test_what_enter_and_exit_call_is_ended_first(where: str) -> None:
    assert printed(where, 0.1) == ["opened", "closed", "landed at once"]


@pytest.mark.parametrize(("where", "before"), [("opened", []), ("closed", ["opened"])])
def test_but_not_where_it_lasts(where: str, before: list[str]) -> None:
    assert printed(where, 20) == [*before, "landed at once"]


MADE = """
import os, signal, tempfile, time
from pathlib import Path
from slotwise import interrupts

mkdir, rmdir = os.mkdir, os.rmdir

def struck(call):
    def slow(*args, **options):
        call(*args, **options)
        os.kill(os.getpid(), signal.SIGINT)
    return slow

{change}
interrupts.install()
try:
    with interrupts.let_through():
        with tempfile.TemporaryDirectory(dir={place!r}) as folder:
            Path(folder, "file").write_bytes(b"")
        time.sleep(10)
except KeyboardInterrupt:
    print("landed")
"""


@pytest.mark.parametrize("change", ["os.mkdir = struck(mkdir)", "os.rmdir = struck(rmdir)"])
def test_a_temporary_folder_that_is_just_made_or_removed_is_not_left_over(tmp_path: Path, change: str) -> None:
    script = MADE.format(change=change, place=str(tmp_path))
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (said.stdout.splitlines()[-1], said.stderr) == ("landed", "")
    assert list(tmp_path.iterdir()) == []
