"""Decoders for a handler of one's own: a picture, and the rows of a table. A bad body is its own request's error."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotwise.worker.slot_errors import SlotError

if TYPE_CHECKING:
    from slotwise.worker.inputs.images import Pixels
    from slotwise.worker.tables.columns import Row, TableSchema


def decode_picture(body: bytes, *, max_pixels: int | None = None) -> Pixels:
    """A picture (JPEG, PNG, WebP and others) as uint8 [h, w, 3], upright, without transparency.

    max_pixels: None means 50 million. Raises BadRequest, TooLarge or UnsupportedMedia.
    """
    from slotwise.worker.inputs.images import decode_rgb  # noqa: PLC0415  who reads no pictures needs no Pillow

    return decode_rgb(body, max_pixels=max_pixels)


def decode_rows(
    body: bytes, headers: Mapping[str, str], columns: Sequence[Mapping[str, Any]]
) -> list[dict[str, float | str | None] | SlotError]:
    """The rows of a table, JSON or CSV in any form that `tabular` takes: of each its values by name, or its own error.

    columns: `self.model["input"]["columns"]`, which model.toml names in [input.columns]. A number is a float, int or bool as
    its column is, and None where it is missing. Raises a SlotError where the body is bad as a whole.
    """
    from slotwise.worker.tables.table_body import rows_of  # noqa: PLC0415

    schema = _schema(json.dumps(columns, sort_keys=True))
    return [row if isinstance(row, SlotError) else _named(row, schema) for row in rows_of(body, headers, schema)]


@functools.lru_cache(maxsize=8)
def _schema(columns: str) -> TableSchema:
    from slotwise.worker.tables.columns import columns_of  # noqa: PLC0415

    return columns_of(json.loads(columns), lambda name: "float64")


def _named(row: Row, schema: TableSchema) -> dict[str, float | str | None]:
    numbers, texts = iter(row[0].tolist()), iter(row[1])
    kinds = {"int": int, "bool": bool, "float": float}
    named: dict[str, float | str | None] = {}
    for column in schema.all:
        value = next(texts) if column.is_text else next(numbers)
        named[column.name] = value if column.is_text else None if value != value else kinds[column.kind](value)
    return named
