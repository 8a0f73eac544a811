"""docs/kubernetes.md: its commands run, and its table of replicas is what its own numbers give."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest

from slotwise.archive.build import build
from tests.k8s.manifests import ROOT
from tests.support.pages import commands, typed

PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
COMMANDS = [command.text for command in commands(PAGE)]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the commands need: an archive, and a folder for what they write."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "model.toml").write_text('name = "toy"\nhandler = "serve_toy.py"\n')
    (folder / "serve_toy.py").write_text("def handle(data, context):\n    return data and [b'ok'] * len(data)\n")
    return {"TMPDIR": str(folder), "ARCHIVE": str(build(folder, folder / "built"))}


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[command[:40] for command in COMMANDS])
def test_a_command_of_the_page_runs(number: int, environ: dict[str, str], tmp_path: Path) -> None:
    tool = COMMANDS[number].split()[0]
    if tool != "slotwise" and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here: the page's command is NOT run")
    done = typed([COMMANDS[number]], ROOT, tmp_path / "output.txt", **environ)
    assert done.code == 0, done.printed


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
