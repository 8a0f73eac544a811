"""README and docs say what docs/figures/*.json says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = re.compile(r"<!-- (?:figures?: [^>]+|history) -->.*?<!-- end -->", re.DOTALL)  # by benchmarks.figures, now or once


def test_the_pages_are_what_the_figures_say() -> None:
    command = [sys.executable, "-m", "benchmarks.figures", "render", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


MEASURED = ["README.md", "docs/performance.md", *(f"docs/{page.name}" for page in PAGES if page.name.startswith("measured-"))]


@pytest.mark.parametrize("page", MEASURED)
def test_no_measured_number_is_typed(page: str) -> None:
    text = WRITTEN.sub("", (ROOT / page).read_text("utf-8"))
    assert not re.findall(r"\d+(?:\.\d+)? (?:times|ms of|MiB)", text)
    if page.startswith("docs/measured-"):
        assert not [line for line in text.splitlines() if line.startswith("|")]


def test_what_is_history_says_where_its_code_is() -> None:
    for page in PAGES:
        for section in re.split(r"^##+ ", page.read_text("utf-8"), flags=re.MULTILINE):
            if "<!-- history -->" in section:
                assert re.search(r"\*History: .*? [0-9a-f]{7}\b", section, re.DOTALL), section.partition("\n")[0]


def test_no_number_begins_a_line() -> None:
    """There Markdown would take the marker for a block of HTML, and end the paragraph."""
    assert not [page for page in PAGES if re.search(r"^ *<!-- figure:", page.read_text("utf-8"), re.MULTILINE)]


def test_no_empty_line_breaks_a_table() -> None:
    """Rows behind one would be shown as text with bars in it."""
    broken = re.compile(r"^(?!\|).*\n\|.*\n(?!\| ?:?-)", re.MULTILINE)
    assert not [(page.name, found[0]) for page in PAGES for found in broken.finditer(page.read_text("utf-8"))]
