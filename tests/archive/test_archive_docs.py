"""The commands on docs/archives, own-model and handlers run as they are printed there, and their tables are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.check.conformance import SENTENCES
from slotwise.model_spec import Input, ModelSpec, Weights
from tests.support.pages import commands, typed

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRAINED = str(DOCS.parent / ".slotwise")  # once for all tests


@pytest.mark.parametrize("page", ["archives", "own-model", "handlers"])
def test_the_commands_of_the_page_run(page: str, tmp_path: Path) -> None:
    texts = [command.text for command in commands((DOCS / f"{page}.md").read_text("utf-8"))]
    (folder := tmp_path / "folder").mkdir()
    done = typed(texts, folder, tmp_path / "output.txt", SLOTWISE_HOME=TRAINED)
    assert done.code == 0, done.printed[-1]
    if page == "handlers":
        _run_the_notebook(folder)


def _run_the_notebook(folder: Path) -> None:
    """The page's lines for a notebook print what stands beside them."""
    section = (DOCS / "handlers.md").read_text("utf-8").split("## In a notebook")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    printed = re.findall(r"^print.*?# (.*)$", code, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "SLOTWISE_HOME": TRAINED}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == printed, done.stderr


def test_every_promise_is_on_the_page() -> None:
    page = (DOCS / "archives.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page.split("## Check")[1], re.MULTILINE)) == set(SENTENCES)


def test_every_key_of_model_toml_is_on_the_page() -> None:
    page = (DOCS / "own-model.md").read_text("utf-8")
    keys = [*ModelSpec.model_fields, *Weights.model_fields, *(f"input.{key}" for key in Input.model_fields)]
    assert [key for key in keys if f"`{key}" not in page and not re.search(rf"^{key} = ", page, re.MULTILINE)] == []
