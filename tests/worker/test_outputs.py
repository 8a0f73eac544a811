"""How outputs are cut into rows: what is read as rows, what as columns, and what as neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings
from slotwise.worker.answer import Refusal
from slotwise.worker.outputs import NOT_FINITE, UNREADABLE, WrongCount, finite, on_host, rows_of, ways_to_read
from tests.worker.toy import ask, begin


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_tuple_of_more_columns_than_rows_keeps_all_of_them(n: int) -> None:
    columns = tuple(np.full(n, k) for k in range(6))
    assert rows_of(columns, n, n, "6 columns") == [(0, 1, 2, 3, 4, 5)] * n


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_model_with_four_outputs_is_answered_with_four(batch_size: int) -> None:
    class Four(BatchHandler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return lambda inputs: tuple(k * inputs for k in range(4))

        def example(self) -> Any:
            return np.ones(1)

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [np.array([float(body)])]

        def encode(self, output: Any, item: Any) -> Any:
            return [float(part[0]) for part in output]

    handler = begin(Four(), Settings(batch_size=batch_size))
    answers = ask(handler, [b"1", b"10", b"5"][:batch_size])
    assert [answer.value for answer in answers] == [[0, 1, 2, 3], [0, 10, 20, 30], [0, 5, 10, 15]][:batch_size]
