"""Compare two outputs of a model: whether they are the same to the bit, and how far apart their numbers are.

Tensors, wherever in an output they are, count as the arrays that they become when the row is answered (outputs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.worker.outputs import on_host
from slotwise.worker.slot_errors import SlotError

PLAIN = (str, bytes, int, type(None), set, frozenset, type)  # what Python itself compares right


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
    value = on_host(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return (array.dtype.str, array.shape, bits(array.tolist()) if array.dtype.hasobject else array.tobytes())
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, Mapping):
        return {name: bits(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    if isinstance(value, SlotError):
        return (type(value).__name__, value.message)
    return value if isinstance(value, PLAIN) else _made_of(value)


def _made_of(value: Any) -> Any:
    """What a copy of an object is made of, also what stands in its slots. One that cannot be looked into is like no other."""
    try:
        made_of = value.__reduce_ex__(4)
    except Exception:  # its state lies where Python cannot see it
        return ("unseen", id(value))
    if isinstance(made_of, str):
        return made_of
    make, *parts = made_of
    return [make, *(bits(list(part) if isinstance(part, Iterator) else part) for part in parts)]


def difference(expected: Any, observed: Any) -> Deviation:
    """How far two outputs are apart, whatever they are made of."""
    expected, observed = on_host(expected), on_host(observed)
    if bits(expected) == bits(observed):
        return Deviation()
    if isinstance(expected, Mapping) and isinstance(observed, Mapping) and expected.keys() == observed.keys():
        return _most(difference(expected[name], observed[name]) for name in expected)
    if isinstance(expected, list | tuple) and isinstance(observed, list | tuple) and len(expected) == len(observed):
        return _most(map(difference, expected, observed))
    if (
        type(expected) is type(observed)
        and not isinstance(expected, SlotError)
        and bits(_fields(expected)) != bits(_fields(observed))
    ):
        return difference(_fields(expected), _fields(observed))
    if any(isinstance(one, np.ndarray) and one.dtype.hasobject for one in (expected, observed)):
        return difference(*(one.tolist() if isinstance(one, np.ndarray) else one for one in (expected, observed)))
    try:
        if {"U", "S"} & {np.asarray(one).dtype.kind for one in (expected, observed)}:
            return Deviation(np.inf, np.inf)  # numpy would read "1000002" as a number: near "1000009", which is another's id
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
    expected, observed = on_host(expected), on_host(observed)
    if isinstance(expected, Mapping) and isinstance(observed, Mapping):
        return {name: _cut(expected.get(name), part, at_end) for name, part in observed.items()}
    if isinstance(expected, np.ndarray) and isinstance(observed, np.ndarray) and expected.ndim == observed.ndim:
        return observed[tuple(_kept(*lengths, at_end) for lengths in zip(expected.shape, observed.shape, strict=True))]
    if isinstance(expected, list | tuple) and isinstance(observed, list | tuple):
        kept = observed[_kept(len(expected), len(observed), at_end)]
        return [_cut(one, other, at_end) for one, other in zip(expected, kept, strict=False)]
    return observed


def _kept(wanted: int, there: int, at_end: bool) -> slice:
    return slice(wanted) if at_end else slice(max(0, there - wanted), None)


def largest(value: Any) -> float:
    """The largest number of an output, whatever its sign; 0 where it holds none."""
    value = on_host(value)
    if isinstance(value, Mapping):
        return max(map(largest, value.values()), default=0.0)
    if isinstance(value, list | tuple):
        return max(map(largest, value), default=0.0)
    if _fields(value):
        return largest(_fields(value))
    array = np.asarray(value)
    return float(np.abs(array).max()) if array.dtype.kind in "iufc" and array.size else 0.0


def holds_floats(value: Any) -> bool:
    """Whether an output is numbers that an engine rounds, and not only what was made of them: a text, or the best label."""
    value = on_host(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return holds_floats(array.tolist()) if array.dtype.hasobject else array.dtype.kind in "fc"
    if isinstance(value, Mapping):
        return any(map(holds_floats, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_floats, value))
    return isinstance(value, float) or holds_floats(list(_fields(value).values()))


def _fields(value: Any) -> dict[str, Any]:
    """The attributes of an object; none where they stand elsewhere."""
    return getattr(value, "__dict__", {})


def _most(differences: Iterable[Deviation]) -> Deviation:
    most = Deviation()
    for one in differences:
        most = most.most(one)
    return most
