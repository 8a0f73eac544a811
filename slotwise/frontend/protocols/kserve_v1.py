"""KServe's V1 protocol: `{"instances": [...]}` in, `{"predictions": [...]}` out, one prediction an instance.

An instance is what the model takes as JSON, or `{"b64": "..."}` for bytes. One that fails is `{"error": {...}}` in its place.
Source: KServe's documentation, "V1 Inference Protocol".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.records import (
    JSON,
    MOST_RECORDS,
    NO_TEXT,
    ProtocolFault,
    RecordAnswer,
    RecordBody,
    limited,
    not_failed_alike,
    of_base64,
    of_few_pieces,
)

TEXT_COPIES = 3  # of one instance: as a text, encoded, decoded from base64
NO_JSON = "the model's answer says that it is JSON, and is none"
TOO_DEEP = "the model's answer is JSON that is nested too deep"
NUMBER_BYTES = 16  # only its place: a record is sent as its client wrote it


def reading_bytes(body: bytes) -> int:
    """The most memory that `records` takes, its result included."""
    return json_pieces.reading_bytes(body, NUMBER_BYTES) + TEXT_COPIES * len(body)


def records(body: bytes) -> list[RecordBody | RecordAnswer]:
    """A record an instance; the error of one whose base64 is none. Raises ProtocolFault where the request is bad as a whole."""
    of_few_pieces(body)
    beside: dict[str, Any] = {}
    try:
        text = body.decode(json.detect_encoding(body))
        instances = json_pieces.elements_of(text, "instances", MOST_RECORDS + 1, _record, beside)
    except (ValueError, RecursionError):
        raise ProtocolFault("the body is no JSON object") from None
    if instances is None:
        raise ProtocolFault('the body has no list "instances"')
    if beside.get("parameters") not in (None, {}):  # answered without them, it would be another request's answer
        raise ProtocolFault("no model takes parameters beside its instances here")
    if "inputs" in beside:  # TensorFlow Serving's name for the same, in columns
        raise ProtocolFault("the body has instances and inputs: one of them")
    limited(len(instances))
    return instances


def _record(instance: Any, text: str) -> RecordBody | RecordAnswer:
    if isinstance(instance, dict) and instance.keys() == {"b64"}:
        return of_base64(instance["b64"], "b64")
    return RecordBody(text.encode(), JSON)


def reply(answers: Sequence[RecordAnswer]) -> bytes:
    """The answer to the request: each prediction as the model wrote it, a text as a text, an error in its place.

    Raises ProtocolFault where no record has an answer that JSON can hold.
    """
    read = not_failed_alike(list(map(_as_json, answers)))
    return b'{"predictions": [' + b", ".join(one.body if one.good else _error(one) for one in read) + b"]}"


def _as_json(one: RecordAnswer) -> RecordAnswer:
    """A good answer as JSON; an error where it is bytes, or says that it is JSON and is none."""
    if not one.good:
        return one
    kind = one.content_type.lower()
    try:
        text = one.body.decode()
    except UnicodeDecodeError:
        return RecordAnswer.failed(500, NO_TEXT)
    if not kind.startswith("text/"):  # a server behind may say nothing of what is JSON
        try:
            json_pieces.check(text)
            return one
        except RecursionError:  # as a text it would be another answer
            return RecordAnswer.failed(500, TOO_DEEP)
        except ValueError:
            if kind.startswith(JSON):
                return RecordAnswer.failed(500, NO_JSON)
    return RecordAnswer(one.status, json_pieces.dumped(text).encode())


def _error(one: RecordAnswer) -> bytes:
    return json.dumps({"error": {"code": one.status, "message": one.message}}).encode()
