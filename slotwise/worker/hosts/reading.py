"""One row of the server's batch to one request: where its body is and until when an answer is of use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from slotwise.worker.batch import Request
from slotwise.worker.errors import BadRequest, UnsupportedMedia
from slotwise.worker.hosts.context import Headers, ServerContext

FIELDS = ("body", "data", "file", "image")  # the name a raw body gets, then those that forms usually use


def request(i: int, row: Mapping[str, Any], context: ServerContext) -> Request:
    """The request in slot i. Raises BadRequest or UnsupportedMedia where no body can be told."""
    headers = context.headers(i)
    return Request(i, context.request_id(i, headers), body(row, headers), headers, deadline_s(headers))


def body(row: Mapping[str, Any], headers: Headers) -> bytes:
    """The raw body, or the one field of a form that carries it."""
    if "body" not in row and headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise UnsupportedMedia("send the body as it is (curl -T FILE), not as an urlencoded form")
    if not row:
        raise BadRequest("the request has no body")
    name = next((name for name in FIELDS if name in row), None)
    if name is None:
        if len(row) > 1:
            raise BadRequest(f"the form has {len(row)} fields: name the one that carries the body 'data'")
        name = next(iter(row))
    value = row[name]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


def deadline_s(headers: Headers) -> float | None:
    """The header x-deadline-ms (Unix time in milliseconds) in seconds. Raises BadRequest where it is no number."""
    raw = headers.get("x-deadline-ms")
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest("x-deadline-ms must be a Unix time in milliseconds")
    return value / 1000
