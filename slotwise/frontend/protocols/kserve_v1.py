"""KServe's V1 protocol: `{"instances": [...]}` in, `{"predictions": [...]}` out, one prediction an instance.

An instance is what the model takes as JSON, or `{"b64": "..."}` for bytes. One that fails is `{"error": {...}}` in its place.
Source: KServe's documentation, "V1 Inference Protocol".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.records import (
    JSON,
    MOST_RECORDS,
    ProtocolFault,
    RecordAnswer,
    RecordBody,
    limited,
    of_few_pieces,
)

TEXT_COPIES = 3  # of one instance: as a text, encoded, decoded from base64
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
    limited(len(instances))
    return instances


def _record(instance: Any, text: str) -> RecordBody | RecordAnswer:
    if isinstance(instance, dict) and instance.keys() == {"b64"}:
        try:
            return RecordBody(base64.b64decode(instance["b64"], validate=True))
        except (binascii.Error, ValueError, TypeError):
            error = {"code": 400, "message": "b64 is no base64"}
            return RecordAnswer(400, json.dumps({"error": error}).encode())
    return RecordBody(text.encode(), JSON)


def reply(answers: Sequence[RecordAnswer]) -> bytes:
    """The answer to the request: each prediction as the model wrote it, a text as a text."""
    return b'{"predictions": [' + b", ".join(map(_prediction, answers)) + b"]}"


def _prediction(one: RecordAnswer) -> bytes:
    if not one.good:
        return json.dumps({"error": {"code": one.status, "message": one.message}}).encode()
    if not one.content_type.lower().startswith("text/"):  # a server behind may say nothing of what is JSON
        with suppress(ValueError, RecursionError):
            json_pieces.check(one.body.decode())
            return one.body
    return json.dumps(one.body.decode("utf-8", "replace"), ensure_ascii=False).encode()
