"""The columns of a table: one row of JSON or CSV becomes numbers and texts, each checked against its column.

A value of a wrong type, one that is missing, and a name that is no column's are refused, and the message names the column.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.worker.slot_errors import Unprocessable

KINDS = ("float", "int", "bool", "text")
EXACT = {"float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 53}  # whole numbers up to here are; some larger ones, too
WHOLE = {"bool": (0, 1), "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-EXACT["float64"], EXACT["float64"])}  # from, to
TRUTHS = {"true": True, "false": False, "1": True, "0": False}  # in CSV
SHOWN = 40  # characters of what a client sent

Row = tuple[Any, tuple[str, ...]]  # numbers [n], float64, and texts, each in the order of the columns


@dataclass(frozen=True)
class SchemaColumn:
    """One column. kind: one of KINDS. values: the only texts that it takes; empty: any. missing: a number may be left out.

    input: the graph's input that it is a part of; "": the one of its own name, or the only one. dtype: numpy's name for what
    the graph holds its numbers in.
    """

    name: str
    kind: str = "float"
    values: tuple[str, ...] = ()
    missing: bool = False
    input: str = ""
    dtype: str = "float64"

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.kind == "text"

    def of_json(self, value: Any) -> float | str:
        """A value of JSON as this column holds it. Raises Unprocessable."""
        if value is None:
            return self._missing()
        if self.is_text:
            if type(value) is not str:
                raise self.refused(value, "a text")
            return self._text(value)
        if self.kind == "bool":
            if type(value) is not bool:
                raise self.refused(value, "true or false")
            return float(value)
        if type(value) is not int and type(value) is not float:
            raise self.refused(value, "a whole number" if self.kind == "int" else "a number")
        return self._number(value)

    def of_text(self, text: str) -> float | str:
        """A field of CSV as this column holds it. Raises Unprocessable."""
        if self.is_text:
            return self._text(text)
        text = text.strip()
        if not text:
            return self._missing()
        if self.kind == "bool":
            if text.lower() not in TRUTHS:
                raise self.refused(text, "true or false")
            return float(TRUTHS[text.lower()])
        try:
            return self._number(_plain_number(text))
        except ValueError:
            raise self.refused(text, "a whole number" if self.kind == "int" else "a number") from None

    def _missing(self) -> float:
        if not self.missing:
            raise Unprocessable(f"column {self.name!r} is missing")
        return math.nan

    def _text(self, text: str) -> str:
        if self.values and text not in self.values:
            raise self.refused(text, f"one of {', '.join(map(repr, self.values[:20]))}{' ...' * (len(self.values) > 20)}")
        if not text and not self.values:
            raise Unprocessable(f"column {self.name!r} is missing")
        try:
            text.encode()
        except UnicodeError:
            raise Unprocessable(f"column {self.name!r} holds half of a surrogate pair, which is no character") from None
        return text

    def _number(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            raise self.refused(value, "a number that can be held") from None
        if not math.isfinite(number):
            raise self.refused(value, "a finite number")
        if self.kind == "int":
            if value != math.floor(value):
                raise self.refused(value, "a whole number")
            if not self._is_exact(value):
                raise self.refused(value, "a whole number that can be held exactly")
        elif self.dtype != "float64" and abs(number) > float(np.finfo(self.dtype).max):
            raise self.refused(value, f"a number that {self.dtype} holds")
        return number

    def _is_exact(self, value: float) -> bool:
        """Whether the graph gets this whole number as it is."""
        if self.dtype in WHOLE:
            least, most = WHOLE[self.dtype]
            return least <= value <= most
        if abs(value) <= EXACT[self.dtype]:
            return True
        with np.errstate(over="ignore"):
            return abs(value) <= EXACT["float64"] and float(np.dtype(self.dtype).type(value)) == value

    def refused(self, value: Any, wanted: str) -> Unprocessable:
        """The error for a value that this column does not take."""
        shown = repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
        return Unprocessable(f"column {self.name!r} takes {wanted}, not {shown:.{SHOWN}}")


class TableSchema:
    """All columns of a table, in the order in which its model was trained."""

    def __init__(self, columns: Iterable[SchemaColumn]) -> None:
        self.all = tuple(columns)
        self.names = [column.name for column in self.all]
        self.known = frozenset(self.names)
        self.numbers = [i for i, column in enumerate(self.all) if not column.is_text]
        self.texts = [i for i, column in enumerate(self.all) if column.is_text]

    def __len__(self) -> int:
        return len(self.all)

    def check_names(self, names: Sequence[str], hint: bool = True) -> None:
        """Raise Unprocessable for a name that is no column's, one that is there twice, and a column that is not there.

        hint: look for the name that may be meant, which takes milliseconds where there are many.
        """
        seen: set[str] = set()
        for name in names:
            if name not in self.known:
                close = difflib.get_close_matches(name[:200], self.names, 1) if hint else []
                said = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, self.names[:20]))}"
                raise Unprocessable(f"there is no column {name[:SHOWN]!r}: {said}")
            if name in seen:
                raise Unprocessable(f"column {name!r} is there twice")
            seen.add(name)
        absent = next((column.name for column in self.all if column.name not in seen and not column.missing), None)
        if absent is not None:
            raise Unprocessable(f"column {absent!r} is missing")

    def of_record(self, record: Mapping[str, Any], hint: bool = True) -> Row:
        """A row of values by name, as JSON has them. hint: as for `check_names`. Raises Unprocessable."""
        if record.keys() != self.known:
            self.check_names(list(record), hint)
        return self._row([column.of_json(record.get(column.name)) for column in self.all])

    def of_list(self, values: Sequence[Any]) -> Row:
        """A row of values in order, as JSON has them. Raises Unprocessable."""
        self._count(len(values))
        return self._row([column.of_json(value) for column, value in zip(self.all, values, strict=True)])

    def of_fields(self, fields: Sequence[str], places: Sequence[int | None]) -> Row:
        """A row of CSV. places: which field is each column's; None: it is left out. Raises Unprocessable."""
        found = [column.of_text("" if place is None else fields[place]) for column, place in zip(self.all, places, strict=True)]
        return self._row(found)

    def _count(self, count: int) -> None:
        if count != len(self.all):
            first = f", and column {self.names[count]!r} is missing" if count < len(self.all) else ""
            raise Unprocessable(f"a row has {len(self.all)} columns, this one has {count}{first}")

    def _row(self, values: Sequence[Any]) -> Row:
        numbers = np.array([values[i] for i in self.numbers], np.float64)
        return numbers, tuple([values[i] for i in self.texts])

    def example(self) -> Row:
        """A row of zeros, and of the first text that each column takes."""
        return np.zeros(len(self.numbers)), tuple([(self.all[i].values or ("a",))[0] for i in self.texts])


def columns_of(listed: Iterable[Mapping[str, Any]], dtype: Callable[[str], str] = lambda name: "float32") -> TableSchema:
    """The columns of model.toml, as slotwise.json has them. dtype: in what the graph holds the column of this name."""
    keys = ("name", "kind", "missing", "input")
    return TableSchema(
        SchemaColumn(
            **{key: one[key] for key in keys if key in one}, values=tuple(one.get("values", ())), dtype=dtype(one["name"])
        )
        for one in listed
    )


def _plain_number(text: str) -> float:
    """A number as CSV has it. Raises ValueError for what Python reads and nobody else: underscores, other digits, nan."""
    if not text.isascii() or "_" in text or text.strip("+-0123456789.eE"):
        raise ValueError(text)
    try:
        return int(text)
    except ValueError:
        return float(text)
