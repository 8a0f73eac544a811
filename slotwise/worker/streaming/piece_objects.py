"""Pieces as they are sent: each is one JSON object on one line. A text is the object {"text": ...}."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slotwise.worker.slot_errors import ModelFault, SlotError
from slotwise.worker.steps.step_engine import End, Next

Piece = dict[str, object]


def as_object(piece: object) -> Piece:
    """An author's piece as an object. Raises ModelFault where it is neither a text nor a mapping."""
    if isinstance(piece, str):
        return {"text": str(piece)}
    if isinstance(piece, Mapping):
        return dict(piece)
    raise ModelFault(f"a piece of the answer is a {type(piece).__name__}, neither a text nor an object")


def each_as_object(pieces: object) -> Iterator[Piece]:
    """What an author's `stream` gave, piece by piece. Raises ModelFault where it gave no pieces."""
    if not isinstance(pieces, Iterator | list | tuple):
        raise ModelFault(f"the handler's stream gave a {type(pieces).__name__}, not pieces")
    try:
        for piece in pieces:
            yield as_object(piece)
    finally:
        if callable(close := getattr(pieces, "close", None)):
            close()


def outcome_as_object(outcome: Next | End | SlotError) -> Next | End | SlotError:
    """What `advance` gave, its piece as an object. Raises ModelFault. What is nothing of the kind stays as it is."""
    if isinstance(outcome, Next | End) and outcome.piece is not None:
        return replace(outcome, piece=as_object(outcome.piece))
    return outcome


def too_many_bytes(most: int) -> ModelFault:
    """What an answer whose pieces have more bytes than that ends with."""
    return ModelFault(f"the answer has more than the {most} bytes that the server sends at most")


def parsed(data: Sequence[bytes]) -> list[Piece]:
    """Pieces as they were sent, as objects again."""
    return [json.loads(one) for one in data]


def whole_text(pieces: Sequence[object]) -> str | None:
    """All pieces in one, where each is a text and nothing else; None else."""
    texts = [piece["text"] for piece in pieces if isinstance(piece, dict) and set(piece) == {"text"}]
    if len(texts) < len(pieces) or not all(isinstance(text, str) for text in texts):
        return None
    return "".join(map(str, texts))
