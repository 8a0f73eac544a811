"""The commands on docs/archives.md and docs/own-model.md run as they are printed there, and their tables are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.check.conformance import SENTENCES
from slotwise.model_spec import Input, ModelSpec, Weights

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands(page: str) -> str:
    """The page's console blocks as one shell script: lines after "$ ", and here-documents whole."""
    script, inside = [], False
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ ") or inside:
                script.append(line.removeprefix("$ "))
                inside = "<<'END'" in line or (inside and line != "END")
    return "\n".join(script)


@pytest.mark.parametrize("page", ["archives", "own-model"])
def test_the_commands_of_the_page_run(page: str, tmp_path: Path) -> None:
    script = commands((DOCS / f"{page}.md").read_text("utf-8"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "SLOTWISE_HOME": str(DOCS.parent / ".slotwise")}  # trained once for all tests
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if page == "own-model":
        _run_the_notebook(tmp_path, environ)


def _run_the_notebook(folder: Path, environ: dict[str, str]) -> None:
    """The page's lines for a notebook print what stands beside them."""
    section = (DOCS / "own-model.md").read_text("utf-8").split("## In a notebook")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    printed = re.findall(r"^print.*?# (.*)$", code, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.stdout.splitlines() == printed, done.stderr


def test_every_promise_is_on_the_page() -> None:
    page = (DOCS / "archives.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page.split("## Check")[1], re.MULTILINE)) == set(SENTENCES)


def test_every_key_of_model_toml_is_on_the_page() -> None:
    page = (DOCS / "own-model.md").read_text("utf-8")
    keys = [*ModelSpec.model_fields, *Weights.model_fields, *(f"input.{key}" for key in Input.model_fields)]
    assert [key for key in keys if f"`{key}" not in page and not re.search(rf"^{key} = ", page, re.MULTILINE)] == []
