"""Turn one row of a server's batch into a Request: find its body, its form fields, its deadline."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slotwise.worker.hosts import forms
from slotwise.worker.hosts.forms import RepeatedParts
from slotwise.worker.inputs.uploads import FIELDS
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import BadRequest, NotOffered, SlotError, UnsupportedMedia


def keep_repeated_parts(package: str) -> None:
    """Once in a worker: make rows hold every part of a form, where the server's own code keeps the last one of each name."""
    service: Any = getattr(sys.modules.get(f"{package}.service"), "Service", None)
    plain = getattr(service, "retrieve_data_for_inference", None)
    if plain is None or hasattr(plain, "slotwise"):
        return

    def retrieve(batch: Any) -> Any:
        headers, rows, ids = plain(batch)
        for row, request in zip(rows, batch, strict=True):
            parts = request["parameters"]
            if len(parts) > len(row):
                for name, count in Counter(part["name"] for part in parts).items():
                    if count > 1:
                        row[name] = RepeatedParts(part["value"] for part in parts if part["name"] == name)
        return headers, rows, ids

    retrieve.slotwise = True  # type: ignore[attr-defined]
    service.retrieve_data_for_inference = staticmethod(retrieve)


def request(row: Mapping[str, Any], headers: Headers, identity: str) -> Request:
    """The request that a server's row is. What is wrong with it is kept in its `refused` and `unclear`; nothing is raised."""
    try:
        until = deadline_s(headers)
        if headers.get("explain", "").lower() == "true":  # POST /explanations/MODEL; else TorchServe says "False"
            raise NotOffered("this model predicts; it does not explain")
        if len(row) == 1 and type(row.get("body")) is bytes:  # nearly every request
            return Request(row["body"], headers, identity, until)
        values = {name: parts(value) for name, value in row.items()}
    except SlotError as error:
        return Request(b"", headers, identity, refused=error)
    if "body" in row and not forms.is_of(headers, forms.MULTIPART):  # the other names stand in the address, or in the form
        is_form = forms.is_of(headers, forms.URL_ENCODED)
        if len(values["body"]) > 1 and is_form:
            refused = BadRequest("the form has several fields 'body', and one body is taken: send several as parts of a form")
            return Request(b"", headers, identity, refused=refused)
        query = {name: value[-1].decode("utf-8", "replace") for name, value in values.items() if name != "body"}
        return Request(values["body"][-1], headers, identity, until, fields=values if is_form else {}, query=query)
    try:
        first, *more = bodies(row, headers)
    except SlotError as error:
        return Request(b"", headers, identity, until, fields=values, unclear=error)
    return Request(first, headers, identity, until, more, values)


def parsed(received: Request) -> Request:
    """A request whose body nobody has looked at, as `request` makes one of a server's row. Nothing is raised."""
    try:
        row = forms.row(received)
    except SlotError as error:
        return Request(b"", received.headers, received.id, refused=error)
    made = request(row, received.headers, received.id)
    return replace(made, query={**made.query, **received.query}) if received.query else made


def bodies(row: Mapping[str, Any], headers: Headers) -> list[bytes]:
    """The raw body; of a form the parts of the field that carries it. Raises BadRequest or UnsupportedMedia."""
    if "body" not in row and forms.is_of(headers, forms.URL_ENCODED):
        raise UnsupportedMedia("send the body as it is (curl -T FILE), not as an urlencoded form")
    if not row:
        raise BadRequest("the request has no body")
    name = next((name for name in FIELDS if name in row), None)
    if name is None:
        if len(row) > 1:
            raise BadRequest(f"the form has {len(row)} fields: name the one that carries the body 'data'")
        name = next(iter(row))
    return parts(row[name])


def parts(value: Any) -> list[bytes]:
    """The values of one field as bytes. Where the server has parsed them, they are written as text or JSON again.

    Raises BadRequest where JSON is nested so deep that it can be parsed, but not written.
    """
    values: Sequence[Any] = value if isinstance(value, RepeatedParts) else [value]
    return [_bytes(one) for one in values]


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        raise BadRequest("the JSON is nested too deep") from None


def deadline_s(headers: Headers) -> float | None:
    """The header x-deadline-ms (Unix time in milliseconds) in seconds; None without it.

    Raises BadRequest where it is no number.
    """
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
