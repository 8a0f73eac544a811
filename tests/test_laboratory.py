"""Nothing in slotwise/ and no daily test imports what measures (benchmarks/) or what tries to break it (tests/campaign/)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "tests" / "campaign"
IMPORT = re.compile(r"^\s*(?:from|import) (?:benchmarks\b|tests\.campaign\b|tests import .*\bcampaign\b).*", re.MULTILINE)


@pytest.mark.parametrize("folder", ["slotwise", "handlers", "models", "scripts", "tests"])
def test_it_imports_nothing_of_the_laboratory(folder: str) -> None:
    files = [file for file in (ROOT / folder).rglob("*.py") if not file.is_relative_to(CAMPAIGN)]
    assert files
    assert [(str(file), found[0]) for file in files for found in IMPORT.finditer(file.read_text("utf-8"))] == []
