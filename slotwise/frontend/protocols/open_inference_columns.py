"""A table in the Open Inference Protocol: a tensor a column, or one of all numbers; each row becomes a record of JSON.

NaN is a number that is missing. What a value may be, the model knows itself: its error names the column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.open_inference_tensors import (
    are_base64,
    listed_texts,
    numbers_of,
    parts_of,
    shape_of,
    texts_of,
)
from slotwise.frontend.protocols.records import JSON, MOST_RECORDS, ModelInput, ProtocolFault, RecordBody, limited

V2_TYPES = {"float": "FP64", "int": "INT64", "bool": "BOOL", "text": "BYTES"}
VALUE_BYTES = 240  # of one value: parsed, in a column, in its row, as JSON
NAME_COPIES = 3  # of a column's name in each row: in a text of JSON, joined, encoded


def of_columns(tensors: Sequence[Mapping[str, Any]], model: ModelInput) -> bool:
    """Whether a request's inputs are columns of a table, and not records of BYTES."""
    if model.takes != "table":
        return False
    named = [name for name, _ in model.columns]
    return len(tensors) != 1 or tensors[0].get("name") in named or tensors[0].get("datatype") != "BYTES"


def described_columns(model: ModelInput) -> list[dict[str, Any]]:
    """The inputs as the model's metadata has them."""
    return [{"name": name, "datatype": V2_TYPES[kind], "shape": [-1, 1]} for name, kind in model.columns]


def reading_columns(model: ModelInput, size: int) -> int:
    """The most memory that `column_records` takes beside the request of `size` bytes, its result included."""
    if model.takes != "table":
        return 0
    row = sum(VALUE_BYTES + NAME_COPIES * len(json_pieces.dumped(name)) for name, _ in model.columns)
    return min(MOST_RECORDS, size) * row + 4 * size


def column_records(tensors: Sequence[Mapping[str, Any]], binary: memoryview, model: ModelInput) -> list[RecordBody]:
    """A record a row. The binary data of the inputs that have some follow each other in `binary`. Raises ProtocolFault."""
    parts = parts_of(tensors, binary)
    kinds = dict(model.columns)
    names = [*kinds]
    if len(tensors) == 1 and tensors[0].get("name") not in names:
        return _rows_of_all(tensors[0], parts[0], names, whole="int" in kinds.values())
    columns: dict[str, list[Any]] = {}
    for tensor, part in zip(tensors, parts, strict=True):
        name = tensor.get("name")
        if not isinstance(name, str) or name not in names:
            raise ProtocolFault(f"there is no column {str(name)[:40]!r}: there are {', '.join(map(repr, names[:20]))}")
        if name in columns:
            raise ProtocolFault(f"the column {name!r} is there twice")
        shape = shape_of(tensor)
        if math.prod(shape[1:]) != 1:
            raise ProtocolFault(f"the column {name!r} must have the shape [n] or [n, 1]")
        columns[name] = _values(tensor, shape, part, whole=kinds[name] == "int")
        if len(columns[name]) != len(next(iter(columns.values()))):
            raise ProtocolFault(f"the column {name!r} has {len(columns[name])} rows, and {next(iter(columns))!r} has others")
    keys = [json_pieces.dumped(name) for name in columns]
    rows = zip(*columns.values(), strict=True)
    return [_record(f"{{{', '.join(f'{key}: {_json(value)}' for key, value in zip(keys, row, strict=True))}}}") for row in rows]


def _rows_of_all(tensor: Mapping[str, Any], part: memoryview | None, names: Sequence[str], whole: bool) -> list[RecordBody]:
    """One tensor [n, columns] of numbers, in the columns' order. whole: some of these are of whole numbers."""
    shape = shape_of(tensor)
    if list(shape[1:]) != [len(names)]:
        raise ProtocolFault(f"the input's shape must be [n, {len(names)}], or each column an input: {', '.join(names[:20])}")
    values = _values(tensor, shape, part, whole)
    rows = [values[at : at + len(names)] for at in range(0, len(values), len(names))]
    return [_record(f"[{', '.join(map(_json, row))}]") for row in rows]


def _record(text: str) -> RecordBody:
    """A row of JSON; what was no UTF-8 is half of a surrogate pair there, which the model refuses."""
    return RecordBody(text.encode("utf-8", "backslashreplace"), JSON)


def _values(tensor: Mapping[str, Any], shape: Sequence[int], part: memoryview | None, whole: bool) -> list[Any]:
    """The values of one tensor, one after the other."""
    limited(shape[0])
    if tensor.get("datatype") != "BYTES":
        values: list[Any] = numbers_of(tensor, shape, part, whole).tolist()
        return values
    if are_base64(tensor):
        raise ProtocolFault(f"{tensor.get('name')!r} says that it is base64, and texts are taken")
    count = math.prod(shape)
    texts = listed_texts(tensor) if part is None else list(texts_of(part, count))
    if len(texts) != count:
        raise ProtocolFault(f"the shape says {count} elements, {len(texts)} are there")
    return [one if isinstance(one, str) else one.decode("utf-8", "surrogateescape") for one in texts]


def _json(value: Any) -> str:
    """A value as JSON: NaN is missing, and infinity one that the model refuses."""
    if type(value) is float and not math.isfinite(value):
        return "null" if math.isnan(value) else "1e999"
    return json_pieces.dumped(value)
