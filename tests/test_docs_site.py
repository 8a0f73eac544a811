"""The documentation as a site: every page is in it, no link is dead, nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_is_built_without_a_dead_link_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [*(tmp_path / "site").rglob("index.html")]
    assert len(pages) > 30
    fetched = re.compile(r'<(?:script|img|link)[^>]+(?:src|href)="?(https?://[^">]+)')
    assert {url for page in pages for url in fetched.findall(page.read_text("utf-8"))} == set()


def test_the_list_for_programs_names_every_page_and_no_other() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text("utf-8"))
    pages = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted([*pages, "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"])


WRITTEN = ("api", "commands")  # by scripts/NAME.py
MARKED = re.compile(r"<!-- (?:figures: [^>]+|history) -->.*?<!-- end -->|<!--.*?-->", re.DOTALL)


def test_no_page_is_longer_than_one_sitting() -> None:
    """2,000 words that a person wrote: not what `benchmarks.figures render` writes between marks."""
    files = [page for page in (ROOT / "docs").glob("*.md") if page.stem not in WRITTEN]
    pages = {page.stem: MARKED.sub("", page.read_text("utf-8")) for page in files}
    assert {name: words for name, text in pages.items() if (words := len(text.split())) > 2000} == {}
    assert len(pages["performance"].split()) <= 1200
    assert all((ROOT / "scripts" / f"{name}.py").is_file() for name in WRITTEN)
