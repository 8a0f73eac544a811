"""What the tests of idioms share."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker.familiar import torchserve_handler


@pytest.fixture
def rows_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With how many rows `inference` and `postprocess` were called so far."""
    seen: list[int] = []
    batch_of_rows = torchserve_handler.batch_of_rows

    def noted(rows: Any) -> Any:
        seen.append(len(rows))
        return batch_of_rows(rows)

    monkeypatch.setattr(torchserve_handler, "batch_of_rows", noted)
    return seen


@pytest.fixture(autouse=True)
def _usual_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What one handler leaves in Python's context variables hides nothing of the next one's. The archive's folder is empty."""
    monkeypatch.chdir(tmp_path)
    with decimal.localcontext(decimal.Context()), np.errstate(), np.printoptions():
        yield
