"""One slot's answer as bytes: whatever cannot be said fails here, alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from slotwise.worker.errors import ModelFault, SlotError

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps would make a new one for every answer


@dataclass(frozen=True)
class Answer:
    """One slot's answer, ready to be sent."""

    code: int
    phrase: str
    content_type: str
    body: bytes
    headers: dict[str, str]


def refusal(error: SlotError, headers: dict[str, str]) -> Answer:
    """The answer that an error becomes."""
    return Answer(error.code, error.phrase, "application/json", serialise(error.body()), headers)


def serialise(body: Any) -> bytes:
    """Bytes as they are, a string or JSON as UTF-8; a lone surrogate becomes its \\uXXXX escape.

    Raises ValueError on NaN and infinity, TypeError on what JSON cannot say.
    """
    if isinstance(body, bytes):
        return body
    text = body if isinstance(body, str) else _JSON.encode(body)
    return text.encode("utf-8", "backslashreplace")


def sayable(result: Any) -> Any:
    """The result, or a ModelFault where JSON cannot say it."""
    try:
        if not isinstance(result, SlotError):
            serialise(result)
        return result
    except Exception:
        return ModelFault("the model's output could not be encoded")
