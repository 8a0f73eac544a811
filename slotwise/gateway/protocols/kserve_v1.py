"""KServe's V1 protocol: `{"instances": [...]}` in, `{"predictions": [...]}` out, one prediction an instance.

An instance is what the model takes as JSON, or `{"b64": "..."}` for bytes. One that fails is `{"error": {...}}` in its place.
Source: KServe's documentation, "V1 Inference Protocol".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from slotwise.gateway.protocols.records import JSON, ProtocolFault, RecordAnswer, RecordBody, limited, parsed


def records(body: bytes) -> list[RecordBody | RecordAnswer]:
    """A record an instance; the error of one whose base64 is none. Raises ProtocolFault where the request is bad as a whole."""
    instances = parsed(body).get("instances")
    if not isinstance(instances, list):
        raise ProtocolFault('the body has no list "instances"')
    limited(len(instances))
    return [_record(instance) for instance in instances]


def _record(instance: Any) -> RecordBody | RecordAnswer:
    if isinstance(instance, dict) and instance.keys() == {"b64"}:
        try:
            return RecordBody(base64.b64decode(instance["b64"], validate=True))
        except (binascii.Error, ValueError, TypeError):
            error = {"code": 400, "message": "b64 is no base64"}
            return RecordAnswer(400, json.dumps({"error": error}).encode())
    return RecordBody(json.dumps(instance).encode(), JSON)


def reply(answers: Sequence[RecordAnswer]) -> dict[str, Any]:
    """The answer to the request."""
    return {"predictions": [one.value if one.good else _error(one) for one in answers]}


def _error(one: RecordAnswer) -> dict[str, Any]:
    return {"error": {"code": one.status, "message": one.message}}
