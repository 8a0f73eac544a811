"""Take the fields out of a form's body, where no server has done it: multipart/form-data (RFC 7578), or urlencoded."""

from __future__ import annotations

import email.errors
import email.message
import email.parser
import email.policy
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slotwise.worker.request import Request
from slotwise.worker.slot_errors import BadRequest, TooLarge

URL_ENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
MAX_PARTS = 256
MAX_PART_HEAD = 8192  # bytes of one part's own headers
PIECE_BYTES = 64 * 1024  # that are looked at in one go
_OF_URL_FORM = bytes(range(0x30, 0x3A)) + bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B)) + b"%+&=*._-"
_TEXT = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_NAMED = re.compile(rb"[\w.*%+-]{1,256}(?:\[[\w.*%+-]{0,256}\]){0,8}=").match


class RepeatedParts(list[Any]):
    """The values of a form's parts that have one name."""


def is_of(headers: Mapping[str, str], kind: str) -> bool:
    """Whether a body is a form of this kind, whatever the case in which its content type is written."""
    return headers.get("content-type", "").lower().startswith(kind)


def row(request: Request, read: Callable[[bytes, str], Any] = lambda content, kind: content) -> dict[str, Any]:
    """The fields of a request whose body nobody has looked at, as the servers' rows have them.

    A body that is no form is the field "body". The parameters of the address are none: nothing in them stands for a body.
    read: makes a field of a part's content and of a file's own content type, which is "" for any other part.
    Raises BadRequest where a form is not whole, TooLarge where it has more than MAX_PARTS parts.
    """
    if is_of(request.headers, URL_ENCODED) and is_url_form(request.body):
        return url_encoded(request.body)
    if not is_of(request.headers, MULTIPART):
        return {"body": request.body}
    parts = _parts(request.body, _boundary(request.headers["content-type"]))
    return _by_name((name, read(content, kind)) for name, content, kind in parts)


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else RepeatedParts(values) for name, values in fields.items()}


def is_url_form(body: bytes) -> bool:
    """Whether a body that is said to be urlencoded is a form: curl says so of every file that it sends.

    It is as it should be; or as people type it (`curl -d 'data=[1, 2]'`, `-d 'ids[]=1'`): a name, and a line of text.
    """
    if b"=" not in body:  # `curl -d 20`: no server finds a field in it
        return False
    return _consists_of(body, _OF_URL_FORM) or (_NAMED(body) is not None and _consists_of(body, _TEXT))


def _consists_of(body: bytes, allowed: bytes) -> bool:
    pieces = (body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES))
    return not any(piece.translate(None, allowed) for piece in pieces)


def url_encoded(body: bytes) -> dict[str, Any]:
    """The fields of a form that a browser sends without files. Raises BadRequest, TooLarge."""
    text = body.decode("latin-1")  # a character a byte: values are whatever bytes they are
    if "=" not in text[text.rfind("&") + 1 :]:
        text = text[: max(text.rfind("&"), 0)]  # a name without a value at the end is no field, for TorchServe's front
    try:
        pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARTS, encoding="latin-1")
    except ValueError:
        raise TooLarge(f"the form has more than {MAX_PARTS} fields") from None
    names = [name.encode("latin-1").decode("utf-8", "replace").strip() for name, _ in pairs]
    fields = _by_name(zip(names, [value.encode("latin-1") for _, value in pairs], strict=True))
    if "" in fields:  # TorchServe's front takes the blanks around a name away, and takes no empty one
        raise BadRequest("a field of the form has no name")
    return fields


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


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, bytes, str]]:
    """Each part's name and content, and of a file its content type."""
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 2)
    if len(pieces) > MAX_PARTS + 2:
        raise TooLarge(f"the form has more than {MAX_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise BadRequest("the form is cut off")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> tuple[str, bytes, str]:
    padding, line, rest = piece.partition(b"\r\n")
    head, blank, content = (b"\r\n" + rest).partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not line or not blank or len(head) > MAX_PART_HEAD:
        raise BadRequest("a part of the form has no headers")
    try:
        parsed = email.parser.HeaderParser(policy=email.policy.compat32).parsestr(_text(head[2:]))
        name, file = (parsed.get_param(one, header="content-disposition") for one in ("name", "filename"))
    except (ValueError, LookupError, TypeError, email.errors.MessageError):
        name = None
    if not isinstance(name, str):
        raise BadRequest("a part of the form has no name")
    return name, content, "" if file is None else str(parsed.get("content-type", "")).partition(";")[0].strip()


def _text(head: bytes) -> str:
    """A part's headers as a text in which no two names become one: names are UTF-8, as clients send them today."""
    try:
        return head.decode()
    except UnicodeDecodeError:
        return head.decode("latin-1")
