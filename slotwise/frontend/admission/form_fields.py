"""Count the fields of a form, and see that they can be read, before any server takes it apart.

A server makes objects of every field, for a few bytes each, and garbage collection then stops it for everybody. What is counted
here is never less than what TorchServe and MMS find: every place where a part can begin counts as a part.
What cannot be read they answer with 500, in Java's words.
"""

from __future__ import annotations

import re

from slotwise.backends.interface import Refused
from slotwise.worker.hosts.forms import MULTIPART, URL_ENCODED, is_url_form

BINARY = "application/octet-stream"
PART_HEAD_MAX_BYTES = 8192
_PARAMETERS = re.compile(r'(?:[ \t]*+;[ \t]*+[\w-]++=(?:"[^"\\]*+"|[^\s;,"]++))*+[ \t]*+;?[ \t]*+', re.ASCII).fullmatch
_BOUNDARY = re.compile(r'[;\s]boundary=("[^"]*"|[^\s;,"]+)', re.IGNORECASE).findall
_BOUNDARY_TEXT = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]").fullmatch  # RFC 2046
_ENCODED = re.compile(
    rb"\n[ \t]*content-transfer-encoding(?![ \t]*:[ \t]*(?:7bit|8bit|binary)[ \t]*[\r\n])", re.IGNORECASE
).search
STRAY_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})").search
_END_OF_HEAD = re.compile(rb"\n\r?\n").search


def sent_as(content_type: str, body: bytes, most: int) -> str:
    """The content type that the server is told: as it came, but curl gives every file that of a form.

    Raises Refused: 413 for a form of more than `most` fields, 400 where it is not clear where a part begins, or what it says.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == URL_ENCODED:
        if not is_url_form(body):
            return BINARY
        _limited(body.count(b"&") + 1, most)
        if STRAY_PERCENT(body):
            raise Refused(400, "the form cannot be read: a % is not followed by two hex digits")
    elif kind.startswith(MULTIPART):
        _count_parts(content_type.strip()[len(MULTIPART) :], body, most)
    return content_type


def _count_parts(parameters: str, body: bytes, most: int) -> None:
    boundaries = [text.strip('"') for text in _BOUNDARY(parameters)] if _PARAMETERS(parameters) else []
    if len(boundaries) != 1 or not _BOUNDARY_TEXT(boundaries[0]):
        raise Refused(400, "the form's content type has no boundary, or an unclear one")
    delimiter = b"--" + boundaries[0].encode("ascii")
    _limited(body.count(delimiter) - 1, most)  # the last one only ends the form
    at, has_forms = body.find(delimiter), False
    while at >= 0:
        start = at + len(delimiter)
        head = body[start : start + PART_HEAD_MAX_BYTES]
        end = _END_OF_HEAD(head)
        at = body.find(delimiter, start)
        if end and _ENCODED(head, 0, end.end()):
            raise Refused(400, "a part of the form has a Content-Transfer-Encoding: only 7bit, 8bit and binary are taken")
        if end is None and len(head) == PART_HEAD_MAX_BYTES and not 0 <= at - start < PART_HEAD_MAX_BYTES:
            raise Refused(413, f"the head of a part of the form is over the limit of {PART_HEAD_MAX_BYTES} bytes")
        has_forms = has_forms or b"multipart/" in head[: end.start() if end else None].lower()
    if has_forms:  # within it, whose boundaries are their own
        _limited(body.count(b"\n--") - 1, most)


def _limited(count: int, most: int) -> None:
    if count > most:
        raise Refused(413, f"the form has more than {most} fields")
