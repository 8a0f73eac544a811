"""Copy dicts and lists however deep they are nested, and see whether several share something that can change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

ATOMS = frozenset({bytes, str, int, float, complex, bool, type(None)})  # nobody can change these
FIXED = (bytes, str, int, float, type(None), tuple)  # what is sent of these never changes; what is in a tuple may
MOST_WORK: Any = 10_000  # numpy's steps for two tensors of which each lies between the other's numbers


def copied(value: object) -> object:
    """A copy of dicts and lists nested as deep as memory allows. Raises what copying anything else in them raises."""
    copies: dict[int, object] = {}
    waiting: list[tuple[Any, Any]] = []  # two dicts, or two lists

    def one(value: object) -> object:
        if type(value) in ATOMS:
            return value
        if id(value) not in copies:
            if type(value) is dict or type(value) is list:
                copies[id(value)] = type(value)()
                waiting.append((value, copies[id(value)]))
            else:
                copies[id(value)] = copy.deepcopy(value)
        return copies[id(value)]

    top = one(value)
    while waiting:
        source, target = waiting.pop()
        if type(source) is dict:
            target.update((key, one(part)) for key, part in source.items())
        else:
            target.extend(map(one, source))
    return top


def share(results: Sequence[Any]) -> bool:
    """Whether an object that can change, or a place in memory, is a part of two results. May raise where nobody can tell.

    What stood there for the first may be the second's by now. It goes through dicts, lists and tuples without a bound, as the
    encoder will, which takes several times as long.
    """
    taken: set[int] = set()
    kept, arrays = [], []  # or another object could get the id of one that was looked at
    for i, result in enumerate(results):
        parts, own = [result], set[int]()
        for part in parts:  # which grows
            is_array = hasattr(part, "data_ptr") or hasattr(part, "ctypes")
            if id(part) in own or type(part) in ATOMS or (hasattr(part, "dtype") and not is_array):  # a number of numpy's
                continue
            if not isinstance(part, FIXED):
                own.add(id(part))
            if is_array:
                arrays.append((i, part))
            parts += _changing(part)
        if not taken.isdisjoint(own):
            return True
        taken |= own
        kept.append(parts)
    return _overlap((i, *_addresses(array)) for i, array in arrays if 0 not in array.shape)


def _changing(whole: Any) -> Iterable[Any]:
    """What is in a dict, list or tuple, but for what nobody can change."""
    if isinstance(whole, dict):
        parts: Any = whole.values() if type(whole) is dict else [value for _, value in whole.items()]
    elif isinstance(whole, list | tuple):
        parts = whole
    else:
        return ()
    return () if ATOMS.issuperset(map(type, parts)) else [part for part in parts if type(part) not in ATOMS]


def _overlap(arrays: Iterable[tuple[int, int, int, Any]]) -> bool:
    """Whether arrays of two results name one place in memory. Raises where that cannot be told, or without NumPy.

    arrays: of which result each is, where it begins and ends, and its addresses.
    """
    before: list[tuple[int, int, Any]] = []
    for i, start, end, addresses in sorted(arrays, key=itemgetter(1)):
        before = [other for other in before if other[1] > start]
        if any(i != other and _meet(addresses, others) for other, _, others in before):
            return True
        before.append((i, end, addresses))
    return False


def _addresses(array: Any) -> tuple[int, int, Any]:
    """Where an array or a tensor begins and ends, and what NumPy needs to know of its addresses; they may be a GPU's."""
    if hasattr(array, "data_ptr"):
        start, size = array.data_ptr(), array.element_size()
        strides = tuple(size * stride for stride in array.stride())
    else:
        start, size, strides = array.__array_interface__["data"][0], array.itemsize, array.strides
    shape = tuple(array.shape)
    around = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    about = {"data": (start, True), "shape": shape, "strides": strides, "typestr": f"|V{size}", "version": 3}
    low, high = sum(min(0, step) for step in around), sum(max(0, step) for step in around)
    return start + low, start + high + size, SimpleNamespace(__array_interface__=about)


def _meet(one: Any, other: Any) -> bool:
    """Whether both have an address. Nobody looks at what is there."""
    import numpy as np  # noqa: PLC0415  a guard's copy of this runs where there may be none

    return np.shares_memory(np.asarray(one), np.asarray(other), max_work=MOST_WORK)
