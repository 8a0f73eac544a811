"""Try the models and print what became of each: python -m tests.thirty [--write] [NAME ...]

--write: of all of them, into run.json beside this file and docs/thirty.md. --page: docs/thirty.md from that file alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.thirty.all_of_them import THIRTY
from tests.thirty.made import Brought
from tests.thirty.trial import Result, tried

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RUN = DOCS / "thirty.md", Path(__file__).with_name("run.json")
HEAD = """# Thirty models of other people's libraries

Each is made by a script, without a download, built from its folder without a line of Python, and asked 160 times on each
engine: sixteen requests alone, all in one batch, and in eight batches with one bad request in eight. Its answers, and every
score behind them, are compared with what the library itself gives (to 0.0001). *Wrong* is a 200 with other numbers, or for a
bad request; *lost* is a good request's error. *Rows* is what the build proved of the rows of a batch on each engine
([separability](separability.md)); *unknown* where it could make up no rows to try.
"""


def page(run: dict[str, Any]) -> str:
    """The page, from what a run wrote."""
    lines = [
        "| model | made by | what it stands for | served by | rows | answers | wrong | lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    models = run["models"]
    for one in models:
        served = ", ".join(one["engines"]) or f"refused: `{one['said'].replace('|', '/')}`"
        rows = ", ".join(dict.fromkeys(one["rows"].values()))
        if len(set(one["rows"].values())) > 1:
            rows = ", ".join(f"{engine}: {kept}" for engine, kept in one["rows"].items())
        counts = [one["answers"], len(one["wrong"]), len(one["lost"])] if one["answers"] else ["", "", ""]
        lines.append(f"| {' | '.join(map(str, [one['name'], one['library'], one['shows'], served, rows, *counts]))} |")
    built = sum(bool(one["engines"]) for one in models)
    answers = sum(one["answers"] for one in models)
    wrong, lost = (sum(len(one[kind]) for one in models) for kind in ("wrong", "lost"))
    total = f"{built} of {len(models)} are served; {answers:,} answers, {wrong} wrong, {lost} lost.\n"
    made = f"Written by `python -m tests.thirty --write` on {run['date']}; `make long` tries them all.\n"
    return "\n".join([HEAD, total, "\n".join(lines), "", made])


def of(brought: Brought, result: Result) -> dict[str, Any]:
    """One model as a run's file has it."""
    return {"name": brought.name, "library": brought.library, "shows": brought.shows, **asdict(result)}


def main(names: list[str], *, write: bool) -> None:
    """Try those that are named, or all."""
    tries: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SLOTWISE_HOME"] = f"{folder}/home"
        for one in [one for one in THIRTY if not names or one.name in names]:
            result = tried(one, Path(folder))
            tries.append(of(one, result))
            told = f"{result.answers} answers, {len(result.wrong)} wrong, {len(result.lost)} lost"
            print(f"{one.name}: {', '.join(result.engines)} {told} {result.said}", flush=True)
            for line in [*result.wrong[:2], *result.lost[:2]]:
                print("   ", line, flush=True)
    if write:
        run = {"date": datetime.now(UTC).date().isoformat(), "models": tries}
        RUN.write_text(json.dumps(run, indent=1) + "\n", "utf-8")
        PAGE.write_text(page(run), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(page(json.loads(RUN.read_text("utf-8"))), "utf-8")
    else:
        named = [name for name in sys.argv[1:] if name != "--write"]
        if named and "--write" in sys.argv:
            sys.exit("--write is for a run of all of them")
        main(named, write="--write" in sys.argv)
