"""One record of a request that holds several: what a model is sent for it, and what became of it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.frontend.protocols import json_pieces

MOST_RECORDS = 1024  # of one request
MOST_PIECES = 2_000_000  # of its JSON: each number and each list is an object in memory
MOST_SMALL_BYTES = 64 * 2**10  # of a body that holds no records
BINARY, JSON = "application/octet-stream", "application/json"
NOT_AS_ASKED = "the body is not what the protocol asks for"  # for the log: a fault's message may quote it
NO_TEXT = "the model's answer is no text"
NamedShape = tuple[str, str, Sequence[int]]


class ProtocolFault(Exception):
    """The request is bad as a whole. status: 400, 413 or 415."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True)
class RecordBody:
    """What the model is sent for one record."""

    body: bytes
    content_type: str = BINARY


@dataclass(frozen=True)
class RecordAnswer:
    """What became of one record. content_type: what the model says of its answer, "" where it says nothing."""

    status: int
    body: bytes
    content_type: str = ""

    @classmethod
    def failed(cls, status: int, message: str) -> RecordAnswer:
        """An error that the model did not say itself."""
        return cls(status, json.dumps({"error": {"code": status, "message": message}}).encode())

    @property
    def good(self) -> bool:
        """Whether the model answered it."""
        return self.status < 400

    @property
    def is_text(self) -> bool:
        """Whether JSON can hold the answer as a text."""
        try:
            self.body.decode()
        except UnicodeDecodeError:
            return False
        return True

    @property
    def value(self) -> Any:
        """The answer as JSON has it: what the model said where that is JSON, else its text."""
        try:
            return json_pieces.loads(self.body)
        except (ValueError, RecursionError):
            return self.body.decode("utf-8", "replace")

    @property
    def message(self) -> str:
        """What is wrong with it."""
        value = self.value
        error = value.get("error") if isinstance(value, dict) else None
        return str(error.get("message")) if isinstance(error, dict) else "the model failed on this record"


Found = Sequence[RecordBody | RecordAnswer]  # the records of a request, or the error of one that cannot be read


def of_base64(text: Any, called: str) -> RecordBody | RecordAnswer:
    """The record whose bytes these are in base64; the error of one that is none. called: what stands there."""
    try:
        return RecordBody(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, TypeError):
        return RecordAnswer.failed(400, f"{called} is no base64")


@dataclass(frozen=True)
class ModelInput:
    """What a model takes. takes: as its card says (picture, table, tensor, file, ...). shape, dtype: of a tensor a record.

    classes: whether it answers with a label and probabilities. scores: how many a record has, where the model gives them all
    to who asks; -1: nobody knows how many, 0: it gives none. own_output: what its graph calls them; "": nothing.
    columns: of a table, each one's name and kind. inputs, outputs: of named tensors, each one's name, numpy's dtype, and shape.
    """

    takes: str = "file"
    shape: Sequence[int] = ()
    classes: bool = False
    scores: int = 0
    own_output: str = ""
    columns: Sequence[tuple[str, str]] = ()
    inputs: Sequence[NamedShape] = ()
    outputs: Sequence[NamedShape] = ()
    dtype: str = "float32"


def of_few_pieces(body: bytes) -> None:
    """Raise ProtocolFault where JSON would become too many objects in memory."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MOST_PIECES:
        raise ProtocolFault(f"the JSON is made of more than {MOST_PIECES} pieces: send tensors as binary data", 413)


def parsed(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ProtocolFault."""
    of_few_pieces(body)
    try:
        content = json_pieces.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolFault("the body is no JSON") from None
    if not isinstance(content, dict):
        raise ProtocolFault("the body is no JSON object")
    return content


def limited(count: int) -> int:
    """The count itself. Raises ProtocolFault where a request has none or too many."""
    if count < 1:
        raise ProtocolFault("the request has no records")
    if count > MOST_RECORDS:
        raise ProtocolFault(f"the request has {count} records, at most {MOST_RECORDS} are taken at once", 413)
    return count


def failed_alike(answers: Sequence[RecordAnswer]) -> RecordAnswer | None:
    """The error of a request whose records all met the same one, so that it is the request's own; else None."""
    first = answers[0]
    if first.good or any(one.status != first.status for one in answers):
        return None
    return first if len(answers) == 1 or first.status == 404 or first.status >= 429 else None


def not_failed_alike(answers: Sequence[RecordAnswer]) -> Sequence[RecordAnswer]:
    """The same. Raises ProtocolFault where one error is that of all of them."""
    failed = failed_alike(answers)
    if failed:
        raise ProtocolFault(failed.message, failed.status)
    return answers


async def small_body(chunks: AsyncIterable[bytes]) -> bytes:
    """A body that only names something. Raises ProtocolFault where it is larger than such bodies are."""
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > MOST_SMALL_BYTES:
            raise ProtocolFault(f"the body is over the limit of {MOST_SMALL_BYTES} bytes")
    return body
