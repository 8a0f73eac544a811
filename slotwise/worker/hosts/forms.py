"""Take the fields out of a form's body, where no server has done it: multipart/form-data (RFC 7578)."""

from __future__ import annotations

import email.errors
import email.message
import email.parser
import email.policy
import urllib.parse
from typing import Any

from slotwise.worker.request import Request
from slotwise.worker.slot_errors import BadRequest, TooLarge

URL_ENCODED = "application/x-www-form-urlencoded"
MAX_PARTS = 256
MAX_PART_HEAD = 8192  # bytes of one part's own headers


class RepeatedParts(list[Any]):
    """The values of a form's parts that have one name."""


def row(request: Request) -> dict[str, Any]:
    """The fields of a request whose body nobody has looked at, as the servers' rows have them.

    A body that is no form is the field "body", and every parameter of the address is a field of its own.
    Raises BadRequest where a form is not whole, TooLarge where it has more than MAX_PARTS parts.
    """
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        return {**request.query, "body": request.body}
    fields: dict[str, list[bytes]] = {name: [value.encode("utf-8", "replace")] for name, value in request.query.items()}
    for name, value in _parts(request.body, _boundary(content_type)):
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else RepeatedParts(values) for name, values in fields.items()}


def url_encoded(body: bytes) -> dict[str, Any]:
    """The fields of a form that a browser sends without files. Raises BadRequest, TooLarge."""
    try:
        pairs = urllib.parse.parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_PARTS)
    except ValueError:
        raise TooLarge(f"the form has more than {MAX_PARTS} fields") from None
    return {name.decode("utf-8", "replace"): value for name, value in pairs}


def _boundary(content_type: str) -> bytes:
    message = email.message.Message()
    message["content-type"] = "".join(char for char in content_type if char.isprintable())
    try:
        boundary = message.get_boundary()
    except (ValueError, LookupError, TypeError, email.errors.MessageError):  # "boundary*99999...=x", for example
        boundary = None
    if not boundary or len(boundary) > 70 or not boundary.isascii():  # RFC 2046
        raise BadRequest("the form's content type has no boundary")
    return boundary.encode("ascii")


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """Each part's name and content."""
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 2)
    if len(pieces) > MAX_PARTS + 2:
        raise TooLarge(f"the form has more than {MAX_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise BadRequest("the form is cut off")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> tuple[str, bytes]:
    padding, line, rest = piece.partition(b"\r\n")
    head, blank, content = (b"\r\n" + rest).partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not line or not blank or len(head) > MAX_PART_HEAD:
        raise BadRequest("a part of the form has no headers")
    try:
        parsed = email.parser.BytesHeaderParser(policy=email.policy.compat32).parsebytes(head[2:])
        name = parsed.get_param("name", header="content-disposition")
    except (ValueError, LookupError, TypeError, email.errors.MessageError):
        name = None
    if not isinstance(name, str):
        raise BadRequest("a part of the form has no name")
    return name, content
