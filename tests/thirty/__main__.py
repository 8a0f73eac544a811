"""Try the models and print what became of each: python -m tests.thirty [--write] [NAME ...]

--write: docs/thirty.md is written from what became of all of them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.thirty.all_of_them import THIRTY
from tests.thirty.made import Brought
from tests.thirty.trial import Result, tried

PAGE = Path(__file__).resolve().parents[2] / "docs" / "thirty.md"
HEAD = """# Thirty models of other people's libraries

Each is made by a script, without a download, built from its folder without a line of Python, and asked 160 times on each
engine: sixteen requests alone, all in one batch, and in eight batches with one bad request in eight. Its answers, and every
score behind them, are compared with what the library itself gives (to 0.0001). *Wrong* is a 200 with other numbers, or for a
bad request; *lost* is a good request's error. Written by `python -m tests.thirty --write`; `make long` tries them all.

"""


def page(results: dict[str, tuple[Brought, Result]]) -> str:
    """The page, from what became of each."""
    lines = [
        "| model | made by | what it stands for | served by | answers | wrong | lost |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (one, result) in results.items():
        served = ", ".join(result.engines) or f"refused: `{result.said.replace('|', '/')[:220]}`"
        lines.append(
            f"| {name} | {one.library} | {one.shows} | {served} | {result.answers or ''} |"
            f" {len(result.wrong) if result.answers else ''} | {len(result.lost) if result.answers else ''} |"
        )
    built = sum(bool(result.engines) for _, result in results.values())
    answers = sum(result.answers for _, result in results.values())
    wrong, lost = (sum(len(getattr(result, kind)) for _, result in results.values()) for kind in ("wrong", "lost"))
    total = f"{built} of {len(results)} are served; {answers:,} answers, {wrong} wrong, {lost} lost.\n"
    return f"{HEAD}{total}\n" + "\n".join(lines) + "\n"


def main(names: list[str], *, write: bool) -> None:
    """Try those that are named, or all."""
    results: dict[str, tuple[Brought, Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SLOTWISE_HOME"] = f"{folder}/home"
        for one in [one for one in THIRTY if not names or one.name in names]:
            result = tried(one, Path(folder))
            results[one.name] = (one, result)
            told = f"{result.answers} answers, {len(result.wrong)} wrong, {len(result.lost)} lost"
            print(f"{one.name}: {', '.join(result.engines)} {told} {result.said}", flush=True)
            for line in [*result.wrong[:2], *result.lost[:2]]:
                print("   ", line, flush=True)
    if write:
        PAGE.write_text(page(results), "utf-8")


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--write"], write="--write" in sys.argv)
