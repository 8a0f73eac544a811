"""Find out which axes of an item are free: a sound has a length as a sequence of tokens has, but no array says so.

Each axis is made twice as long, and where the model takes no such item, half as long. A network of a fixed shape refuses both,
nearly always when its items are stacked. One that takes them pads the shorter row, and that must not change its answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slotwise.worker.separability.bits import bits
from slotwise.worker.separability.mates import EXAMPLE, Company, changed, has_length

MOST_TRIED = 12

Pair = Callable[[Any, Any], list[Any] | None]  # two items to their outputs in one batch; None where they never run together
Place = tuple[int, int]  # which of an item's arrays, and which of its axes


def with_lengths(whole: Company, pair: Pair) -> Company:
    """The company with a longest item, or with a shorter row, where such a one runs beside the row and moves its bits.

    One that runs and moves none of them is one of its mates.
    """
    groups = _axes(whole)
    first = whole.row if whole.longest is None else whole.longest
    if not groups or (outputs := pair(first, whole.row)) is None:
        return whole
    search = _LengthSearch(whole, pair, bits(outputs[1]))
    for group in groups:
        if not search.longer(group) and len(group) > 1:
            for place in group:
                search.longer([place])
    return search.found


@dataclass
class _LengthSearch:
    """found: the company so far. as_it_is: the row's bits beside the longest of `found`."""

    found: Company
    pair: Pair
    as_it_is: Any
    tried: itertools.count[int] = field(default_factory=itertools.count)

    def longer(self, places: Sequence[Place]) -> bool:
        """Whether the row runs beside an item that is twice as long there, or half as long; keeps that item."""
        if next(self.tried) >= MOST_TRIED:
            return False
        row, longest = self.found.row, self.found.longest
        longer = _resized(row if longest is None else longest, places, _twice)
        if (outputs := self.pair(longer, row)) is None:
            return longest is None and self.shorter(places)
        if bits(outputs[1]) == self.as_it_is:
            self.mate("longer", longer)
        else:
            self.found, self.as_it_is = _lengthened(self.found, row, longer), bits(outputs[1])
        return True

    def shorter(self, places: Sequence[Place]) -> bool:
        """As `longer`, where the row itself is as long as the model takes."""
        row, shorter = self.found.row, _resized(self.found.row, places, _half)
        if bits(shorter) == bits(row) or (outputs := self.pair(row, shorter)) is None:
            return False
        alone = self.pair(shorter, shorter)
        if alone is not None and bits(alone[1]) == bits(outputs[1]):
            self.mate("shorter", shorter)
        else:
            self.found, self.as_it_is = _lengthened(self.found, shorter, row), bits(outputs[1])
        return True

    def mate(self, kind: str, item: Any) -> None:
        """Keep one more mate."""
        self.found = replace(self.found, mates={**self.found.mates, kind: item})


def _lengthened(whole: Company, row: Any, longest: Any) -> Company:
    """The company with another row and longest. Examples may be longer still, so that batches would have several shapes."""
    mates = {kind: mate for kind, mate in whole.mates.items() if not kind.startswith(EXAMPLE)}
    return Company(row, mates, longest)


def _axes(whole: Company) -> list[list[Place]]:
    """The axes of the row's arrays, those of one size together: a mask is as long as what it masks.

    Without those that its longest has shown to be lengths.
    """
    shapes: list[tuple[int, ...]] = []

    def note(array: Any) -> Any:
        shapes.append(() if whole.longest is not None and has_length(array) else np.shape(array))
        return array

    changed(whole.row, note)
    by_size: dict[int, list[Place]] = {}
    for i, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            by_size.setdefault(size, []).append((i, axis))
    return list(by_size.values())


def _resized(item: Any, places: Sequence[Place], resize: Callable[[Any, int], Any]) -> Any:
    """The item with these axes resized."""
    count = itertools.count()

    def change(array: Any) -> Any:
        this = next(count)
        for i, axis in places:
            array = resize(array, axis) if i == this else array
        return array

    return changed(item, change)


def _twice(array: Any, axis: int) -> Any:
    return np.concatenate([array, array], axis) if isinstance(array, np.ndarray) else array + array


def _half(array: Any, axis: int) -> Any:
    kept = slice((np.shape(array)[axis] + 1) // 2)
    return array[(slice(None),) * axis + (kept,)] if isinstance(array, np.ndarray) else array[kept]
