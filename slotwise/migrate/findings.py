"""What a migration finds: one line for each thing, and whether it works here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slotwise.errors import SlotwiseError

Verdict = Literal["works", "note", "cannot"]
Said = tuple[Verdict, str]  # of a thing that is known: what becomes of it


@dataclass(frozen=True)
class Finding:
    """One thing of a deployment: a file, a key, an archive. about: what is kept, what differs, or why it cannot be done."""

    what: str
    verdict: Verdict
    about: str


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict on all of them together."""
    found = {finding.verdict for finding in findings}
    return "cannot" if "cannot" in found else "note" if "note" in found else "works"


def need_new(out: Path | None, source: Path) -> None:
    """Raise SlotwiseError where something is already where a migration is to write, or that is inside what is read."""
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SlotwiseError(f"{out} is there already", "name a new folder with --out")
    if out and out.resolve().is_relative_to(source.resolve()):
        raise SlotwiseError(f"{out} is inside {source}", "name a folder beside it")
