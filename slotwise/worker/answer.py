"""One slot's answer, ready to be sent: what cannot be said fails here, alone."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slotwise.worker.slot_errors import PHRASES, ModelFault, SlotError, known_status, text

JSON_TYPE = "application/json"
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what HTTP calls a token
# the server's, and `respond`'s
FRAMING = {"content-length", "content-type", "transfer-encoding", "connection", "ts_stream_next"}

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps would make a new one for every answer


class CheckedHeaders(dict[str, str]):
    """Headers that have been checked: ASCII, no line break."""

    def with_slot(self, i: int) -> CheckedHeaders:
        """The same headers, and the slot's number."""
        copy = CheckedHeaders(self)
        copy["x-batch-slot"] = str(i)
        return copy


def checked(raw: Any) -> CheckedHeaders:
    """Any mapping of headers as text; None is none.

    A number becomes text, a character beyond ASCII becomes "?", and what frames a message is left out: it is the server's.
    Raises ModelFault where it is no mapping, or a name or value holds a line break.
    """
    if raw is None:
        return CheckedHeaders()
    if not isinstance(raw, Mapping):
        raise ModelFault("the handler's response headers are not a mapping")
    headers = CheckedHeaders()
    for name, value in raw.items():
        said = text(name)
        if NAME.fullmatch(said) is None:
            raise ModelFault("the name of a response header holds a character that it may not hold")
        if said.lower() not in FRAMING:
            headers[said] = header_text(value)
    return headers


def header_text(value: Any) -> str:
    """One header's value as ASCII. Raises ModelFault where it holds a line break or another control character."""
    return _line(text(value))


@lru_cache(256)
def _line(said: str) -> str:
    said = said.encode("ascii", "replace").decode()
    if not said.isprintable():
        raise ModelFault("a response header holds a line break")
    return said


@dataclass(frozen=True)
class Answer:
    """One slot's answer. It checks itself: nothing that is in it can break the answer of another slot.

    status: an unknown one becomes its class's (400, 500). content_type: None is JSON. Raises ModelFault where the content
    type or a header holds a line break, or the body is not bytes.
    """

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str]

    def __post_init__(self) -> None:
        if type(self.headers) is not CheckedHeaders:
            object.__setattr__(self, "headers", checked(self.headers))
        if self.status not in PHRASES:
            object.__setattr__(self, "status", known_status(self.status))
        if self.content_type != JSON_TYPE:
            kind = JSON_TYPE if self.content_type is None else header_text(self.content_type)
            object.__setattr__(self, "content_type", kind)
        if type(self.body) is not bytes:
            raise ModelFault("the answer's body is not bytes")

    @property
    def phrase(self) -> str:
        """The status line's reason, for example "Bad Request"."""
        return PHRASES[self.status]


def refusal(error: SlotError, headers: CheckedHeaders) -> Answer:
    """The answer that an error becomes. It cannot fail, whatever an author's error is."""
    error = sound(error)
    return Answer(known_status(error.code), JSON_TYPE, serialise(error.body()), headers)


def sound(error: SlotError) -> SlotError:
    """The error itself where it can be sent, else a plain one of the same status and message.

    It forgets where it was raised: those frames hold the body and what had been decoded of it.
    """
    with contextlib.suppress(Exception):
        error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        right = isinstance(error.message, str) and known_status(error.code) == error.code
        if right and (type(error).body is SlotError.body or serialise(error.body())):
            return error
    except Exception:
        right = False
    plain = SlotError(_attribute(error, "message"))
    plain.code = known_status(_attribute(error, "code"))
    return plain


def _attribute(error: SlotError, name: str) -> Any:
    try:
        return getattr(error, name)
    except Exception:
        return "the handler failed"


def serialise(body: Any) -> bytes:
    """Bytes as they are, a string or JSON as UTF-8; a lone surrogate becomes its \\uXXXX escape.

    Raises ValueError on NaN, infinity and what refers to itself, TypeError on what JSON cannot say.
    """
    if isinstance(body, bytes):
        return bytes(body)
    said = body if isinstance(body, str) else _JSON.encode(body)
    return said.encode("utf-8", "backslashreplace")


def sayable(result: Any) -> Any:
    """The result, or a ModelFault where JSON cannot say it."""
    try:
        if not isinstance(result, SlotError):
            serialise(result)
        return result
    except Exception:
        return ModelFault("the model's output could not be encoded")
