"""What a program can rely on in an answer: its keys and the types of their values."""

from __future__ import annotations

from typing import Any


def shape(value: Any) -> Any:
    """Keys and types; the words of a text may differ."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def covers(theirs: Any, ours: Any) -> bool:
    """Whether all of their answer is in ours, which may say more."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return all(key in ours and covers(one, ours[key]) for key, one in theirs.items())
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(map(covers, theirs, ours))
    return bool(theirs == ours)
