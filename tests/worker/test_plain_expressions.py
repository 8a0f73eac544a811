"""What an exported program may have evaluated: sums of numbers and sizes, and nothing that runs code."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from slotwise.worker.engines.exported_program import _is_plain


@pytest.mark.parametrize("text", ["1 + 2 * s0", "Max(1, s0)", "4096"])
def test_what_only_calculates(text: str) -> None:
    assert _is_plain(text)


@pytest.mark.parametrize(
    "text",
    ["1 +", "'rm -rf'", "s0.__class__", "_s0", "eval(1)", "(lambda: 1)", "Max(1)(2)", "[x for x in s]", "(" * 5000, "\0"],
)
def test_what_does_more(text: str) -> None:
    assert not _is_plain(text)
