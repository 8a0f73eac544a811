"""`make serve` and the others install into an environment: a stopped step is over, half an environment is mended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "setup.sh"
# Stands for the environment's Python: pip is there, and installs for ever.
PIP = """\
#!/bin/sh
case "$*" in *--version*) exit 0 ;; esac
exec sleep 300.{number}
"""


def project(folder: Path) -> Path:
    """What setup.sh needs of a checkout."""
    (folder / "scripts").mkdir()
    shutil.copy(SCRIPT, folder / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).write_text("")
    return folder


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable, **more}


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_is_stopped_does_not_go_on_alone(tmp_path: Path, end: signal.Signals) -> None:
    python = project(tmp_path) / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(number=os.getpid()))
    python.chmod(0o755)
    command = [
        "env",
        "--default-signal=INT",
        "sh",
        "scripts/setup.sh",
        "serve",
    ]  # what runs in the background may ignore SIGINT
    steps: list[psutil.Process] = []
    script = subprocess.Popen(command, cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not steps:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with suppress(psutil.Error):  # the others end at once
                steps = [one for one in psutil.Process(script.pid).children() if f"300.{os.getpid()}" in one.cmdline()]
        os.killpg(script.pid, end)  # as a terminal does it
        assert script.wait(60) == 130
        assert psutil.wait_procs(steps, 60)[1] == []
    finally:
        script.kill()
        for one in steps:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_an_environment_without_pip_gets_one(tmp_path: Path) -> None:
    """As a stop while it is made leaves it."""
    project(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    nothing = environ(PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    done = subprocess.run(["sh", "scripts/setup.sh", "serve"], cwd=tmp_path, env=nothing, capture_output=True, text=True)
    assert (done.returncode, "No module named pip" in done.stderr) == (1, False)
    assert "No matching distribution found" in done.stderr
