"""Make one slot's answer ready to be sent. What cannot be sent fails here, in its own slot."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from slotwise.worker.slot_errors import PHRASES, ModelFault, SlotError, known_status, text

JSON_TYPE = "application/json"
REQUEST_ID = "x-batch-request-id"  # of a request; given back with its answer
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what HTTP calls a token
# A handler cannot set these: the server frames its messages with them, and `respond` gives the content type.
FRAMING = {"content-length", "content-type", "transfer-encoding", "connection", "ts_stream_next"}

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}").fullmatch
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps would make a new one for every answer
# What it makes anew in C for every answer, made once; a Python without it writes the same in its own way.
_IN_C = getattr(json.encoder, "c_make_encoder", None)
_PARTS = _IN_C and _IN_C(None, _JSON.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, False)


class CheckedHeaders(dict[str, str]):
    """Headers that have been checked: ASCII, no line break."""

    def with_slot(self, i: int, identity: str) -> CheckedHeaders:
        """The same headers, the slot's number, and what its request is known by, so that who sent it knows the answer."""
        copy = CheckedHeaders(self)
        copy["x-batch-slot"] = str(i)
        copy.pop(REQUEST_ID, None)
        copy.update(sent_back(identity))
        return copy


def sent_back(identity: str) -> dict[str, str]:
    """The header by which an answer is known; none where the request brought none, or no plain one."""
    return {REQUEST_ID: identity} if _PLAIN_ID(identity) else {}


def checked(raw: object, charset: str = "ascii") -> CheckedHeaders:
    """Check a handler's response headers: any mapping, or None for no headers.

    A number becomes text, and a character beyond the charset becomes "?". Headers that frame a message are left out.
    Raises ModelFault where it is no mapping, or a name or value holds a line break.
    """
    if raw is None:
        return CheckedHeaders()
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise ModelFault("the handler's response headers are not a mapping")
    headers = CheckedHeaders()
    for name, value in raw.items():
        header = text(name)
        if HEADER_NAME.fullmatch(header) is None:
            raise ModelFault("the name of a response header holds a character that is not allowed there")
        if header.lower() not in FRAMING:
            headers[header] = header_text(value, charset)
    return headers


def header_text(value: object, charset: str = "ascii") -> str:
    """One header's value in this charset. Raises ModelFault where it holds a line break or another control character."""
    return _one_line(text(value), charset)


@lru_cache(256)
def _one_line(value: str, charset: str) -> str:
    value = value.encode(charset, "replace").decode(charset)
    if not value.replace("\t", " ").isprintable():
        raise ModelFault("a response header holds a line break")
    return value


@dataclass(frozen=True, init=False)
class Answer:
    """One slot's answer. It checks itself, so that nothing in it can break the answer of another slot.

    status: an HTTP status; one that HTTP does not know becomes 400 or 500. content_type: None means JSON. body: bytes.
    headers: any mapping; numbers become text, and a character beyond ASCII becomes "?".
    Raises ModelFault where the content type or a header holds a line break, or the body is not bytes.
    """

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str]

    def __init__(self, status: int, content_type: str | None, body: object, headers: Mapping[str, object]) -> None:
        if type(body) is not bytes:
            raise ModelFault("the answer's body is not bytes")
        vars(self).update(
            status=status if status in PHRASES else known_status(status),
            content_type=JSON_TYPE if content_type is None or content_type == JSON_TYPE else header_text(content_type),
            body=body,
            headers=headers if type(headers) is CheckedHeaders else checked(headers),
        )

    @property
    def phrase(self) -> str:
        """The status line's reason, for example "Bad Request"."""
        return PHRASES[self.status]


class GivenAnswer(Answer):
    """What a stranger's handler gave for one slot, as its server sends it: any status from 200 to 599, headers in Latin-1."""

    def __init__(self, status: int, content_type: str | None, body: object, headers: Mapping[str, object]) -> None:
        super().__init__(status, content_type, body, checked(headers, "latin-1"))
        if 200 <= status <= 599:
            vars(self).update(status=status)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that somebody is answered with, written down: whatever becomes of the error itself, this stays.

    status: the HTTP status. message: for the client. body: the error as JSON. source: the error, for an author's `respond`.
    """

    status: int
    message: str
    body: bytes
    source: SlotError

    @classmethod
    def of(cls, error: SlotError) -> Refusal:
        """What a SlotError becomes. This cannot fail, whatever an author's error is like."""
        error = sound(error)
        return cls(known_status(error.code), error.message, serialise(error.body()), error)

    def answer(self, headers: CheckedHeaders) -> Answer:
        """One slot's answer."""
        return Answer(self.status, JSON_TYPE, self.body, headers)

    @property
    def result(self) -> Refusal:
        """What stands for the record that is refused."""
        return self

    def error(self) -> SlotError:
        """The error as an author's `respond` gets it, made anew each time."""
        with contextlib.suppress(Exception):
            again = copy.deepcopy(self.source)
            if known_status(again.code) == self.status and serialise(again.body()) == self.body:
                return again
        plain = SlotError(self.message)
        plain.code = self.status
        return plain


def refusal(error: SlotError, headers: CheckedHeaders) -> Answer:
    """The answer that a SlotError becomes. This cannot fail, whatever an author's error is like."""
    return Refusal.of(error).answer(headers)


def sound(error: SlotError) -> SlotError:
    """The error itself where it can be sent, else a plain SlotError with the same status and message.

    Its traceback is dropped, because the frames in it keep the body and what was decoded of it in memory.
    """
    with contextlib.suppress(Exception):
        error.__traceback__ = error.__context__ = error.__cause__ = None
    with contextlib.suppress(Exception):  # an author's attributes and body() may raise anything
        sendable = isinstance(error.message, str) and known_status(error.code) == error.code
        if sendable and (type(error).body is SlotError.body or serialise(error.body())):
            return error
    plain = SlotError(_attribute(error, "message"))
    plain.code = known_status(_attribute(error, "code"))
    return plain


def _attribute(error: SlotError, name: str) -> object:
    try:
        return getattr(error, name)
    except Exception:
        return "the handler failed"


def serialise(body: object) -> bytes:
    """A body as bytes: bytes stay, text becomes UTF-8, and anything else becomes JSON in UTF-8.

    A lone surrogate becomes its \\uXXXX escape. Raises ValueError on NaN and infinity, ValueError or RecursionError on what
    contains itself, and TypeError on what JSON has no form for.
    """
    if isinstance(body, bytes):
        return bytes(body)
    if isinstance(body, str):
        return body.encode("utf-8", "backslashreplace")
    written = "".join(_PARTS(body, 0)) if _PARTS else _JSON.encode(body)
    return written.encode("utf-8", "backslashreplace")


def json_safe(result: object) -> object:
    """The result itself, or a Refusal where it cannot be written as JSON."""
    try:
        if not isinstance(result, Refusal):
            serialise(result)
        return result
    except Exception:
        return Refusal.of(ModelFault("the model's output could not be encoded"))
