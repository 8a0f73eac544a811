"""What the tests of idioms share."""

from __future__ import annotations

from typing import Any

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
