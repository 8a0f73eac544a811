"""Compare two answers: texts exactly, numbers within a tolerance, because an engine's kernels change with the batch size.

Whatever JSON holds can be compared: nothing here raises for an integer that no float can hold, or for lists in lists in lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

TOLERANCE = 0.02  # absolute below 1 and relative above; bf16 and int8 kernels move a probability by up to about 0.01
Pair = tuple[Any, Any]
APART: Pair = (True, False)


def agree(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two JSON values are the same, within the tolerance."""
    waiting: list[Pair] = [(one, other)]
    while waiting:
        a, b = waiting.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            waiting += _in_objects(a, b, tolerance)
        elif isinstance(a, list) and isinstance(b, list):
            waiting += zip(a, b, strict=True) if len(a) == len(b) else [APART]
        elif _is_number(a) and _is_number(b):
            if not _near(a, b, tolerance, max(1, abs(a), abs(b))) or _other_numbers(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def _in_objects(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> Iterable[Pair]:
    """What has to agree for two objects to agree."""
    if _is_classification(one) and _is_classification(other):
        same_label = _label_fits(one, other, tolerance) and _label_fits(other, one, tolerance)
        return [(one["probabilities"], other["probabilities"])] if same_label else [APART]
    missing = one.keys() ^ other.keys()
    if missing and not all(_marginal(one, other, key, tolerance) for key in missing):
        return [APART]
    return [(one[key], other[key]) for key in one.keys() & other.keys()]


def _marginal(one: dict[str, Any], other: dict[str, Any], key: str, tolerance: float) -> bool:
    """Whether it makes no difference that one side lacks a key: in a top-k list its value is near the other list's last."""
    if len(one) != len(other) or not all(_is_number(value) for side in (one, other) for value in side.values()):
        return False
    has, lacks = (one, other) if key in one else (other, one)
    return _near(has[key], min(lacks.values()), tolerance)


def _is_classification(value: dict[str, Any]) -> bool:
    if value.keys() != {"label", "probabilities"} or isinstance(value["label"], list | dict):
        return False
    probabilities = value["probabilities"]
    return isinstance(probabilities, dict) and all(map(_is_number, probabilities.values()))


def _label_fits(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> bool:
    """Whether `one`'s label is also `other`'s, or as probable there as the best one."""
    if one["label"] == other["label"]:
        return True
    theirs: dict[str, Any] = other["probabilities"]
    return one["label"] in theirs and _near(theirs[one["label"]], max(theirs.values()), tolerance)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _other_numbers(one: Any, other: Any) -> bool:
    """Whether these are whole numbers more than 1 apart: rounding makes 1 of a hair; more is another class, or another's id."""
    return isinstance(one, int) and isinstance(other, int) and abs(one - other) > 1


def _near(one: Any, other: Any, tolerance: Any, scale: Any = 1) -> bool:
    """Whether two numbers are at most tolerance * scale apart. NaN is near NaN, infinity near itself only."""
    if one == other or (one != one and other != other):
        return True
    if any(isinstance(value, float) and not math.isfinite(value) for value in (one, other)):
        return False
    try:
        return bool(abs(one - other) <= tolerance * scale)
    except OverflowError:  # an integer that no float can hold
        return _near(Fraction(one), Fraction(other), Fraction(tolerance), Fraction(scale))
