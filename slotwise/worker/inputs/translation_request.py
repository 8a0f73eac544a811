"""Read a translation request, many records under one pair of languages, and write its answer.

    {"payload": {"fromLang": "ja", "toLang": "en", "records": [{"id": "123", "text": "..."}]}}

Where the request as a whole is wrong, it gets one error that names the field. Where one record is wrong, the error stands in
that record's place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge, Unprocessable

KIND_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
Id = str | int | float | None


@dataclass(frozen=True)
class TranslationRequest:
    """One request. source, target: codes of languages that the model knows. records: counted, but not yet checked."""

    source: str
    target: str
    records: list[Any]


def read(body: bytes, languages: Collection[str], max_records: int) -> TranslationRequest:
    """Read a body. Raises BadRequest (not JSON), Unprocessable (a wrong field) or TooLarge (too many records)."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not JSON") from error
    payload = _field(data, "payload", dict, "the body")
    source, target = (_language(payload, name, languages) for name in ("fromLang", "toLang"))
    records = _field(payload, "records", list, "payload")
    if len(records) > max_records:
        raise TooLarge(f"payload.records holds {len(records)} records, but at most {max_records} are taken at once")
    return TranslationRequest(source, target, records)


def each(records: list[Any], row: Callable[[Any], Any]) -> list[Any]:
    """Call `row(record)` for every record: what it returns, or the SlotError that it raises, in the record's place."""
    rows: list[Any] = []
    for record in records:
        try:
            rows.append(row(record))
        except SlotError as error:
            rows.append(error)
    return rows


def text_of(record: Any) -> tuple[Id, str]:
    """A record's id and text. Raises Unprocessable where it has none."""
    if not isinstance(record, dict):
        raise Unprocessable("a record must be an object with an id and a text")
    if "id" not in record or (record["id"] is not None and id_of(record) is None):
        raise Unprocessable("a record's id must be a string or a number")
    if not isinstance(record.get("text"), str):
        raise Unprocessable("a record's text must be a string")
    return id_of(record), record["text"]


def id_of(record: Any) -> Id:
    """The id under which a record is answered, or None. The record may be anything."""
    value = record.get("id") if isinstance(record, dict) else None
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None  # JSON has no NaN, although Python's parser accepts it
    return value if isinstance(value, str | int | float) else None


def records_of(body: bytes) -> list[Any]:
    """The records of a body that `read` has taken."""
    records: list[Any] = json.loads(body)["payload"]["records"]
    return records


def answer(
    body: bytes, results: list[Any], more: Sequence[bytes] = (), own: Callable[[bytes], list[Any]] = records_of
) -> dict[str, list[Any]]:
    """The answer's body: one result a record, in order. A SlotError gets its record's id from the request's bodies.

    more: the other bodies of a form. own: the records of one, each of which has a result.
    """
    if any(isinstance(result, SlotError) for result in results):
        records = [record for one in (body, *more) for record in own(one)]
        results = [
            {"id": id_of(record), **result.body()} if isinstance(result, SlotError) else result
            for record, result in zip(records, results, strict=True)
        ]
    return {"result": results}


def _field(data: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(data, dict):
        raise Unprocessable(f"{where} must be an object")
    if not isinstance(data.get(name), kind):
        raise Unprocessable(f"{_path(where, name)} must be {KIND_NAMES[kind]}")
    return data[name]


def _language(payload: dict[str, Any], name: str, languages: Collection[str]) -> str:
    code: str = _field(payload, name, str, "payload")
    if code not in languages:
        raise Unprocessable(f"payload.{name}: {code[:20]!r} is not one of this model's languages: {', '.join(languages)}")
    return code


def _path(where: str, name: str) -> str:
    return name if where == "the body" else f"{where}.{name}"
