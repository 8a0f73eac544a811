"""Write what stands between markers: `figures:` a table on lines of its own, `figure:` a number within a sentence.

What stands between `history` and `end` is of a finished experiment, and stays.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.pages import campaign, comparison, crowds, gpu, neighbours, originals, stale, streams, tables, tuning
from benchmarks.pages.values import VALUES, value

TABLES = tables.TABLES | comparison.TABLES | tuning.TABLES | campaign.TABLES | gpu.TABLES
TABLES = TABLES | neighbours.TABLES | streams.TABLES | crowds.TABLES | originals.TABLES
MEND = "python -m benchmarks.figures render"
BLOCK = re.compile(r"(<!-- figures: ([\w.+-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- figure: ([\w.-]+) -->)([^<]*)(<!-- end -->)")

NOT_YET = "not measured yet"

Figures = dict[str, Any]


def load(root: Path) -> Figures:
    """docs/figures/*.json by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((root / "docs" / "figures").glob("*.json"))}


def pages(root: Path) -> list[Path]:
    """Where figures may stand."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def written(text: str, figures: Figures, root: Path) -> str:
    """The page with everything between its markers written anew. Raises KeyError for a marker that nobody knows."""

    def missing(names: list[str]) -> bool:
        return not ({*names} - {"all"} <= {*figures})

    def block(marker: re.Match[str]) -> str:
        table, names = TABLES[marker[2]], marker[2].partition(".")[0].split("+")
        if missing(names):
            return f"{marker[1]}\n*{NOT_YET}*\n\n{marker[4]}"
        aged = [name for name in names if name in stale.CODE and not marker[2].endswith((".command", ".settings"))]
        note = "".join(stale.line(name, figures[name], root) for name in aged)
        return f"{marker[1]}\n{table(figures)}\n\n{note}{marker[4]}"

    def inline(marker: re.Match[str]) -> str:
        name = marker[2]
        late = name in VALUES and missing([name.partition(".")[0]])
        return f"{marker[1]}{NOT_YET if late else value(name, figures)}{marker[4]}"

    return INLINE.sub(inline, BLOCK.sub(block, text))


def comparable(text: str) -> str:
    """The page without what its figures do not decide: whether the code changed since."""
    return stale.LINE.sub("", text)


def render(root: Path, *, check: bool) -> int:
    """Write the pages; with check only show what would change, and return 1 where anything would."""
    figures, differing = load(root), 0
    for page in pages(root):
        old = page.read_text("utf-8")
        new = written(old, figures, root)
        if not check:
            page.write_text(new, "utf-8")
        elif comparable(old) != comparable(new):
            differing += 1
            ours, theirs = (comparable(text).splitlines(keepends=True) for text in (old, new))
            sys.stdout.writelines(difflib.unified_diff(ours, theirs, str(page.relative_to(root)), "its figures", n=0))
    if differing:
        print(f"{differing} page(s) are not what docs/figures says: {MEND}")
    return 1 if differing else 0
