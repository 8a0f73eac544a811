"""docs/kubernetes.md: its commands run, and its table of replicas is what its own numbers give."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.archive.build import build
from tests.k8s.manifests import ROOT

PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the commands need: an archive, and a folder for what they write."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "model.toml").write_text('name = "toy"\nhandler = "serve_toy.py"\n')
    (folder / "serve_toy.py").write_text("def handle(data, context):\n    return data and [b'ok'] * len(data)\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TMPDIR": str(folder), "ARCHIVE": str(build(folder, folder / "built"))}


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[command[:40] for command in COMMANDS])
def test_a_command_of_the_page_runs(number: int, environ: dict[str, str]) -> None:
    command = COMMANDS[number]
    tool = command.split()[0]
    if shutil.which(tool, path=environ["PATH"]) is None:
        pytest.skip(f"{tool} is not here: the page's command is NOT run")
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_of_replicas_is_calculated_right() -> None:
    table = PAGE.split("## How many replicas")[1]
    rates = [int(rate.replace(" ", "")) for rate in re.findall(r"([\d ]+)/s", table.split("\n| ---")[0].splitlines()[-1])]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line.startswith("| `")]
    assert rates
    assert rows
    for _, a, b, n, workers, most, *replicas in rows:
        each = 1000 * int(n) / (float(a) * int(n) + float(b))
        assert int(most.replace(" ", "")) == round(int(workers) * each)
        assert [int(count) for count in replicas] == [math.ceil(rate / (0.7 * int(workers) * each)) for rate in rates]
