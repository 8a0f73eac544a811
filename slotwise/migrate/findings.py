"""What a migration finds: one line for each thing, and whether it works here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["works", "note", "cannot"]


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
