"""Errors that become one slot's HTTP status. All other requests of the batch are answered as if nothing had happened.

SlotError                 the root: a status code and one sentence for the client
├── BadRequest            400  the body cannot be decoded
├── TooLarge              413  the body, the picture or the number of records is over a limit
├── UnsupportedMedia      415  the body is of a kind that this model does not take
├── Unprocessable         422  well-formed, but it means nothing to this model
├── ModelFault            500  the model failed on this row, or its output cannot be sent
├── NotOffered            501  the model predicts; it does not do what this route asks for
├── Unavailable           503  nobody's fault: there was no time, or the engine is dead
├── DeadlineExceeded      504  the client's deadline passed before the row was run
├── OutOfMemory           507  the row alone does not fit into memory
└── StageFault                 what a stage answered, with its status
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

PHRASES = {status.value: status.phrase for status in HTTPStatus}
NO_TEXT = "an error whose message cannot be shown"


def text(value: Any) -> str:
    """Anything as text, or NO_TEXT where its `__str__` fails."""
    try:
        return value if type(value) is str else str(value)
    except Exception:
        return NO_TEXT


def known_status(code: Any) -> int:
    """The HTTP status of an error: a known one stays, an unknown 4xx becomes 400, everything else becomes 500."""
    if not isinstance(code, int) or not 400 <= code <= 599:
        return 500
    return int(code) if code in PHRASES else code // 100 * 100


class SlotError(Exception):
    """The root: one slot is answered with an error.

    message: one sentence for the client, without paths, traces or anybody else's data. code: the HTTP status.
    """

    code = 500

    def __init__(self, message: Any) -> None:
        self.message = text(message)
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        """The error as the client sees it, for a whole request or in one record's place."""
        return {"error": {"code": known_status(self.code), "message": text(self.message)}}


class BadRequest(SlotError):
    """The body cannot be decoded."""

    code = 400


class TooLarge(SlotError):
    """The body, the picture or the number of records is over a limit."""

    code = 413


class UnsupportedMedia(SlotError):
    """The body is of a kind that this model does not take."""

    code = 415


class Unprocessable(SlotError):
    """The body is well-formed, but it means nothing to this model."""

    code = 422


class ModelFault(SlotError):
    """The model failed on this row, or its output cannot be sent."""

    code = 500


class NotOffered(SlotError):
    """The model predicts; it does not do what this route asks for."""

    code = 501


class Unavailable(SlotError):
    """There was no time for this request, or the engine is dead. Another worker may well answer."""

    code = 503


class DeadlineExceeded(SlotError):
    """The deadline that the client set passed before the row was run."""

    code = 504


class OutOfMemory(SlotError):
    """The row alone does not fit into the device's memory."""

    code = 507


class StageFault(SlotError):
    """What a stage answered instead of a result, with its own status."""

    def __init__(self, code: int, message: Any) -> None:
        super().__init__(message)
        self.code = known_status(code)
