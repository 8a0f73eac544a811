"""Own what an author's hook returned: a value that nobody else can change any more.

Hooks may fill the same objects again in their next call, and may change what they are handed. So what a hook returned is owned
before any hook runs again, and what is handed out twice is a copy each time.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass

import numpy as np
import numpy.typing as npt

from slotwise.worker.copies import ATOMS, copied

NUMPY_KEEPS = 500  # numbers that numpy copies without letting other threads run
SMALL_BYTES = 64 * 1024


def owned(value: object) -> object:
    """The value itself where nothing can change it, else a copy. Raises what copying it raises."""
    if type(value) is np.ndarray:
        source: object = value.base
        while type(source) is np.ndarray:
            source = source.base
        if type(source) is bytes:  # numpy.frombuffer(body) shows bytes, which never change; what it shows of them may
            return value.view()
        return _array(value)
    if type(value) in ATOMS:
        return value
    try:
        return _owned(value)
    except RecursionError:  # JSON may be nested deeper than Python calls functions
        return copied(value)


def _array(value: npt.NDArray[np.float64]) -> object:
    """A copy; of a small array without the change of threads that numpy allows: that takes longer than copying."""
    if value.dtype.kind == "O":  # each for itself: one object may stand in the rows of many
        own = np.empty(value.shape, object)
        for at in np.ndindex(value.shape):
            own[at] = owned(value[at])
        return own
    if value.dtype.hasobject:
        return copy.deepcopy(value)
    if (
        value.size <= NUMPY_KEEPS
        or value.nbytes > SMALL_BYTES
        or value.dtype.kind not in "biuf"
        or not value.flags.c_contiguous
    ):
        return value.copy()
    return np.ndarray(value.shape, value.dtype, bytearray(value))


def _owned(value: object) -> object:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is np.ndarray:
        return owned(value)
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return value
    if kind is list and isinstance(value, list):
        return [_owned(part) for part in value]
    if kind is dict and isinstance(value, dict):
        return {name: _owned(part) for name, part in value.items()}
    if kind is tuple and isinstance(value, tuple):
        return tuple([_owned(part) for part in value])
    if callable(clone := getattr(value, "clone", None)) and hasattr(value, "detach"):  # a tensor
        return clone().detach()
    return value if _is_fixed(value) else copy.deepcopy(value)


def _is_fixed(value: object) -> bool:
    """Whether this is a frozen dataclass of values that nobody can change."""
    if not is_dataclass(value) or isinstance(value, type) or not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    return all(type(getattr(value, field.name)) in ATOMS for field in fields(value))
