"""Compare two answers: texts exactly, numbers within a tolerance, because an engine's kernels change with the batch size."""

from __future__ import annotations

from typing import Any

TOLERANCE = 0.02  # absolute below 1 and relative above; bf16 and int8 kernels move a probability by up to about 0.01


def agree(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two JSON values are the same, within the tolerance."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= tolerance * max(1.0, abs(one), abs(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return _objects_agree(one, other, tolerance)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(agree(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _objects_agree(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> bool:
    if _is_classification(one) and _is_classification(other):
        same_label = _label_fits(one, other, tolerance) and _label_fits(other, one, tolerance)
        return same_label and agree(one["probabilities"], other["probabilities"], tolerance)
    missing = (one.keys() | other.keys()) - (one.keys() & other.keys())
    if missing and not all(_marginal(one, other, key, tolerance) for key in missing):
        return False
    return all(agree(one[key], other[key], tolerance) for key in one.keys() & other.keys())


def _marginal(one: dict[str, Any], other: dict[str, Any], key: str, tolerance: float) -> bool:
    """Whether it makes no difference that one side lacks a key: in a top-k list its value is near the other list's last."""
    numbers = [value for side in (one, other) for value in side.values()]
    if len(one) != len(other) or not all(isinstance(value, int | float) for value in numbers):
        return False
    has, lacks = (one, other) if key in one else (other, one)
    return abs(float(has[key]) - float(min(lacks.values()))) <= tolerance


def _is_classification(value: dict[str, Any]) -> bool:
    return value.keys() == {"label", "probabilities"} and isinstance(value["probabilities"], dict)


def _label_fits(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> bool:
    """Whether `one`'s label is also `other`'s, or as probable there as the best one."""
    if one["label"] == other["label"]:
        return True
    theirs: dict[str, float] = other["probabilities"]
    return theirs.get(one["label"], -1.0) >= max(theirs.values(), default=0.0) - tolerance
