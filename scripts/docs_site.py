"""Hooks of mkdocs: the README is the site's first page, and the pages beside it belong to the site, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ABOVE = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
LINK = re.compile(r"(\]\()(?!https?:|#)(?:\.\./|docs/)?([^)#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie beside docs/; generated figures go along."""
    for name, target in ABOVE.items():
        files.append(File.generated(config, target, content=(ROOT / name).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its links as they are within the site."""
    return LINK.sub(lambda link: link[1] + ABOVE.get(link[2], link[2]), markdown)
