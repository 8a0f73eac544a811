"""Compare two outputs of a model: whether they are the same to the bit, and how far apart their numbers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.worker.slot_errors import SlotError


@dataclass(frozen=True)
class Deviation:
    """How far two outputs are apart at most: absolute, and relative to the largest number of the expected output.

    Infinite where they differ in anything but numbers.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def most(self, other: Deviation) -> Deviation:
        """The larger of both."""
        return Deviation(max(self.absolute, other.absolute), max(self.relative, other.relative))


def bits(value: Any) -> Any:
    """What is equal for two outputs only where every bit of them is."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return (array.dtype.str, array.shape, bits(array.tolist()) if array.dtype.kind == "O" else array.tobytes())
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, Mapping):
        return {name: bits(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    if isinstance(value, SlotError):
        return (type(value).__name__, value.message)
    return bits(vars(value)) if hasattr(value, "__dict__") else value


def difference(expected: Any, observed: Any) -> Deviation:
    """How far two outputs are apart, whatever they are made of."""
    if bits(expected) == bits(observed):
        return Deviation()
    if isinstance(expected, Mapping) and isinstance(observed, Mapping) and expected.keys() == observed.keys():
        return _most(difference(expected[name], observed[name]) for name in expected)
    if isinstance(expected, list | tuple) and isinstance(observed, list | tuple) and len(expected) == len(observed):
        return _most(map(difference, expected, observed))
    if hasattr(expected, "__dict__") and type(expected) is type(observed) and not isinstance(expected, SlotError):
        return difference(vars(expected), vars(observed))
    try:
        first, second = np.asarray(expected, np.complex128), np.asarray(observed, np.complex128)
        apart = float(np.abs(first - second).max()) if first.shape == second.shape else np.nan
        if not np.isnan(apart):
            return Deviation(apart, apart / (float(np.abs(first).max()) or 1.0))
    except (TypeError, ValueError):
        pass
    return Deviation(np.inf, np.inf)


def padded_difference(expected: Any, observed: Any) -> Deviation:
    """How far two outputs are apart, of which the second may be padded to its batch's length, at its end or its beginning."""
    ends = (difference(expected, _cut(expected, observed, at_end)) for at_end in (True, False))
    return min(ends, key=lambda deviation: deviation.absolute)


def _cut(expected: Any, observed: Any, at_end: bool) -> Any:
    """As much of an output as the expected one has."""
    if isinstance(expected, Mapping) and isinstance(observed, Mapping):
        return {name: _cut(expected.get(name), part, at_end) for name, part in observed.items()}
    if isinstance(expected, np.ndarray) and isinstance(observed, np.ndarray) and expected.ndim == observed.ndim:
        return observed[tuple(_kept(*lengths, at_end) for lengths in zip(expected.shape, observed.shape, strict=True))]
    if isinstance(expected, list | tuple) and isinstance(observed, list | tuple):
        return observed[_kept(len(expected), len(observed), at_end)]
    return observed


def _kept(wanted: int, there: int, at_end: bool) -> slice:
    return slice(wanted) if at_end else slice(max(0, there - wanted), None)


def largest(value: Any) -> float:
    """The largest number of an output, whatever its sign; 0 where it holds none."""
    if isinstance(value, Mapping):
        return max(map(largest, value.values()), default=0.0)
    if isinstance(value, list | tuple):
        return max(map(largest, value), default=0.0)
    if hasattr(value, "__dict__"):
        return largest(vars(value))
    array = np.asarray(value)
    return float(np.abs(array).max()) if array.dtype.kind in "iufc" and array.size else 0.0


def holds_floats(value: Any) -> bool:
    """Whether an output is numbers that an engine rounds, and not only what was made of them: a text, or the best label."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value).dtype.kind in "fc"
    if isinstance(value, Mapping):
        return any(map(holds_floats, value.values()))
    return isinstance(value, float) or (isinstance(value, list | tuple) and any(map(holds_floats, value)))


def _most(differences: Iterable[Deviation]) -> Deviation:
    most = Deviation()
    for one in differences:
        most = most.most(one)
    return most
