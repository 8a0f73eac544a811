"""Read the rows of a body: JSON, row by row or column by column, and CSV.

{"age": 41, "city": "Oslo"}                     one row         [41, "Oslo"]                         one row, in order
[{"age": 41, ...}, [29, "Rome"]]                several rows    {"instances": [...]}                 the same
{"age": [41, 29], "city": ["Oslo", "Rome"]}     columns         {"columns": [...], "data": [[...]]}  as pandas splits them
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slotwise.worker.inputs.plain_text import CHARSETS, UNNAMED
from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge, Unprocessable, UnsupportedMedia
from slotwise.worker.tables.columns import Row, TableSchema

MAX_ROWS = 1024  # of one request
HINTS = 8  # rows of a body for which a name that may be meant is looked for
SPLIT = frozenset({"columns", "data", "index"})


def rows_of(body: bytes, headers: Mapping[str, str], columns: TableSchema) -> list[Row | SlotError]:
    """The rows of a body, each with its error in its place. Raises a SlotError where the body is bad as a whole."""
    kind, parameters = _kind(headers)
    if _is_json(body, kind):
        return _json_rows(body, columns)
    if kind == "text/csv" or kind in UNNAMED:
        return _csv_rows(body, columns, "absent" in parameters.get("header", ""))
    raise UnsupportedMedia("send a table as application/json or text/csv")


def is_list(body: bytes, headers: Mapping[str, str], columns: TableSchema) -> bool:
    """Whether a body that `rows_of` has read may hold several rows, so that its answer is a list."""
    return not (_is_json(body, _kind(headers)[0]) and _is_one_row(json.loads(body), columns))


def _kind(headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    kind, *more = headers.get("content-type", "").lower().split(";")
    parameters = {name.strip(): value.strip(' "') for name, _, value in (one.partition("=") for one in more)}
    if parameters.get("charset", "") not in CHARSETS:
        raise UnsupportedMedia("the table must be UTF-8")
    kind = kind.strip()
    return ("application/json" if kind.endswith("+json") else kind), parameters


def _is_json(body: bytes, kind: str) -> bool:
    """Whether a body is read as JSON: it says so, or says nothing and looks like it."""
    looks = body[:64].lstrip(b" \t\r\n\xef\xbb\xbf")[:1] in (b"{", b"[")
    return kind == "application/json" or (kind in UNNAMED and looks)


def _json_rows(body: bytes, columns: TableSchema) -> list[Row | SlotError]:
    if body.count(b",") + body.count(b"[") + body.count(b"{") > 2 * MAX_ROWS * (len(columns) + 2):
        raise TooLarge(f"the JSON is made of more pieces than {MAX_ROWS} rows have")
    try:
        data = json.loads(body, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if _is_wrapped(data, columns):
        data = data["instances"]
        if not isinstance(data, list):
            raise Unprocessable("instances must be a list")
    if _is_split(data, columns):
        return _split_rows(data["columns"], data["data"], columns)
    if isinstance(data, dict) and data and all(isinstance(value, list) for value in data.values()):
        return _column_rows(data, columns)
    if _is_one_row(data, columns):
        return [_one(columns, data)]
    if not isinstance(data, list):
        raise Unprocessable("a table is an object of columns, or a list of rows")
    return [_row(columns, one, hint=i < HINTS) for i, one in enumerate(_counted(data))]


def _is_wrapped(data: Any, columns: TableSchema) -> bool:
    """Whether the rows stand under `instances`, which is no column here."""
    return isinstance(data, dict) and data.keys() == {"instances"} and "instances" not in columns.known


def _is_split(data: Any, columns: TableSchema) -> bool:
    """Whether a table is split as pandas does it, by names that are no columns here."""
    return isinstance(data, dict) and {"columns", "data"} <= data.keys() <= SPLIT and not SPLIT & columns.known


def _is_one_row(data: Any, columns: TableSchema) -> bool:
    """Whether JSON is one row: an object of values, or a list of values."""
    if isinstance(data, dict):
        lists = bool(data) and all(isinstance(value, list) for value in data.values())
        return not (lists or _is_wrapped(data, columns) or _is_split(data, columns))
    return isinstance(data, list) and bool(data) and not any(isinstance(one, list | dict) for one in data)


def _one(columns: TableSchema, data: Any, hint: bool = True) -> Row:
    if isinstance(data, dict):
        return columns.of_record(data, hint)
    if isinstance(data, list):
        return columns.of_list(data)
    raise Unprocessable(f"a row is an object or a list, not {type(data).__name__}")


def _row(columns: TableSchema, data: Any, hint: bool = True) -> Row | SlotError:
    """A row, or its error."""
    try:
        return _one(columns, data, hint)
    except SlotError as error:
        return error


def _counted(rows: Sequence[Any]) -> Sequence[Any]:
    if not rows:
        raise BadRequest("the table has no rows")
    if len(rows) > MAX_ROWS:
        raise TooLarge(f"the table has {len(rows)} rows, at most {MAX_ROWS} are taken at once")
    return rows


def _split_rows(names: Any, data: Any, columns: TableSchema) -> list[Row | SlotError]:
    """`{"columns": [...], "data": [[...], ...]}`."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not isinstance(data, list):
        raise Unprocessable("columns must be a list of names, and data a list of rows")
    columns.check_names(names)

    def row(values: Any) -> Row | SlotError:
        if not isinstance(values, list) or len(values) != len(names):
            return Unprocessable(f"a row of data is no list of {len(names)} values")
        return _row(columns, dict(zip(names, values, strict=True)))

    return [row(values) for values in _counted(data)]


def _column_rows(data: Mapping[str, list[Any]], columns: TableSchema) -> list[Row | SlotError]:
    columns.check_names(list(data))
    count = len(next(iter(data.values())))
    for name, values in data.items():
        if len(values) != count:
            raise Unprocessable(f"column {name!r} has {len(values)} values, but {next(iter(data))!r} has {count}")
    return [_row(columns, dict(zip(data, values, strict=True))) for values in _counted(list(zip(*data.values(), strict=True)))]


def _csv_rows(body: bytes, columns: TableSchema, headless: bool) -> list[Row | SlotError]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest("the body is no UTF-8") from None
    if "\0" in text:
        raise BadRequest("the body is no CSV")
    if max(text.count("\n"), text.count("\r")) > 4 * MAX_ROWS + 4:  # either ends a line
        raise TooLarge(f"the table has more than {MAX_ROWS} rows")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        raise BadRequest("the body is no CSV") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise BadRequest("the body is empty")
    if not headless:
        lines = lines[next(i for i, fields in enumerate(lines) if fields) :]
    names = columns.names if headless else [name.strip() for name in lines.pop(0)]
    lines = [fields or [""] for fields in lines if fields or len(names) == 1]  # of one column an empty line is an empty field
    columns.check_names(names)
    places = [names.index(name) if name in names else None for name in columns.names]
    return [_checked(columns, fields, places, len(names)) for fields in _counted(lines)]


def _checked(columns: TableSchema, fields: Sequence[str], places: Sequence[int | None], count: int) -> Row | SlotError:
    if len(fields) != count:
        return Unprocessable(f"a line has {len(fields)} fields, but there are {count} columns")
    try:
        return columns.of_fields(fields, places)
    except SlotError as error:
        return error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are there once. Raises Unprocessable."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Unprocessable(f"column {twice[:40]!r} is there twice")
    return found


def _no_number(word: str) -> Callable[[], None]:
    raise ValueError(word)
