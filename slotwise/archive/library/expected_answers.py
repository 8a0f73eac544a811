"""Write what a library itself answers to many rows, also at its model's thresholds: the build compares its graph with that.

write_expected("credit", model.predict_proba, rows)     # credit/expected.json; in model.toml: expected = "expected.json"
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.errors import SlotwiseError

FILE = "expected.json"
MOST_ROWS = 1000  # of those that are given
PAIRS = 500  # each gives two rows, one on each side of a threshold
HALVINGS = 70  # until two numbers are neighbours in float64

Ask = Callable[[Any], Any]


def write_expected(folder: str | Path, answer: Ask, rows: Any, *, edges: bool = True) -> Path:
    """Write FOLDER/expected.json: rows, and what `answer` gives for them. Returns its path.

    answer: rows as `rows` has them to numbers [b] or [b, n], as `predict_proba` or `predict`. rows: an array [b, columns] or a
    data frame, in the columns' order; fractions are asked in float64, as JSON has them. edges: also rows at the model's
    thresholds, found by asking it: two neighbours among the numbers of float64 that it answers otherwise.

    Raises SlotwiseError where there are no rows, or no numbers are answered.
    """
    table = Table(rows)
    chosen = table.values[:: max(1, len(table.values) // MOST_ROWS)][:MOST_ROWS]
    if not len(chosen):
        raise SlotwiseError("there are no rows to compare", "give the rows that the model was trained on")
    if edges:
        chosen = np.concatenate([chosen, edges_of(table, answer)])
    answers = table.asked(answer, chosen)
    listed = [[_plain(value) for value in row] for row in chosen]
    path = Path(folder) / FILE
    path.write_text(json.dumps({"rows": listed, "answers": answers.tolist()}) + "\n", "utf-8")
    return path


class Table:
    """Rows [b, columns] as objects, and a way back to what they came as: an array or a data frame, fractions in float64."""

    def __init__(self, rows: Any) -> None:
        array = np.asarray(rows)
        if array.ndim != 2:
            raise SlotwiseError("the rows must be a table", "an array [b, columns], or a data frame")
        count = array.shape[1]
        self.kind = np.dtype(np.float64) if array.dtype.kind == "f" else array.dtype
        self.frame = rows if hasattr(rows, "iloc") else None
        kinds = [self.kind] * count if self.frame is None else list(self.frame.dtypes)
        self.kinds = [np.dtype(np.float64) if kind.kind == "f" else kind for kind in kinds]
        self.values = array.astype(self.kind).astype(object)
        self.numeric = [i for i in range(count) if self.kinds[i].kind == "f" or self._is_fraction(i)]

    def _is_fraction(self, column: int) -> bool:
        return all(isinstance(value, float) for value in self.values[:, column])

    def asked(self, answer: Ask, values: Any) -> Any:
        """The answers to rows [b, columns] as numbers [b, n]. Raises SlotwiseError where they are none."""
        if self.frame is None:
            given = values.astype(self.kind)
        else:
            given = type(self.frame)(values, columns=self.frame.columns)
            given = given.astype(dict(zip(self.frame.columns, self.kinds, strict=True)))
        found = np.asarray(answer(given), np.float64).reshape(len(values), -1)
        if not np.isfinite(found).all():
            raise SlotwiseError("the library answers what is no finite number", "leave those rows out")
        return found


def edges_of(table: Table, answer: Ask) -> Any:
    """Rows [2 * pairs, columns] on both sides of a model's thresholds, as near to them as numbers can be.

    Two rows, or one and itself with one number of another, are answered otherwise or not; the way between them is halved at
    whatever is answered as its beginning is. What is found depends on nothing but what the model answers.
    """
    draw = np.random.default_rng(0)
    count = len(table.values)
    first, second = (table.values[draw.integers(0, count, PAIRS)] for _ in range(2))
    columns = table.numeric
    if not columns:
        return first[:0]
    low, high = (side[:, columns].astype(np.float64) for side in (first, second))
    alone = draw.random(PAIRS) < 0.7  # one number moves
    others = np.arange(len(columns)) != draw.integers(0, len(columns), PAIRS)[:, None]
    high = np.where(alone[:, None] & others, low, high)
    whole = np.isfinite(low).all(axis=1) & np.isfinite(high).all(axis=1)
    first, low, high = first[whole], low[whole], high[whole]
    if not len(first):
        return first

    def rows(numbers: Any) -> Any:
        made = first.copy()
        made[:, columns] = numbers
        return made

    begun = table.asked(answer, rows(low))
    for _ in range(HALVINGS):
        between = low + (high - low) / 2
        same = np.isclose(table.asked(answer, rows(between)), begun, rtol=1e-9, atol=1e-12).all(axis=1)[:, None]
        low, high = np.where(same, between, low), np.where(same, high, between)
    return np.concatenate([rows(low), rows(high)])


def _plain(value: Any) -> Any:
    """A value as JSON has it: NaN and None are null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None or value != value else value
