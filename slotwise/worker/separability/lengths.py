"""Find out which axes of an item are free: a sound has a length as a sequence of tokens has, but no array says so.

Each axis is made twice as long, and where the model takes no such item, half as long. A network of a fixed shape refuses both,
nearly always when its items are stacked. One that takes them pads the shorter row, and that must not change its answer. The
length of a text is an axis, too: `collate` may make tokens of it. Where the model takes only texts of its own kind, or where
an object holds nobody knows what, a shorter example becomes the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slotwise.worker.separability.bits import bits
from slotwise.worker.separability.mates import EXAMPLE, Company, changed, has_length, is_strange, parts_of, texts_of, with_texts

MOST_TRIED = 12

Pair = Callable[[Any, Any], list[Any] | None]  # two items to their outputs in one batch; None where they never run together
Place = tuple[int, int]  # which of an item's parts, and which of its axes


def with_lengths(whole: Company, pair: Pair) -> Company:
    """The company with a longest item, or with a shorter row, where such a one runs beside the row and moves its bits.

    One that runs and moves none of them is one of its mates.
    """
    groups = _axes(whole)
    first = whole.row if whole.longest is None else whole.longest
    if not (groups or any(map(is_strange, parts_of(whole.row)))) or (outputs := pair(first, whole.row)) is None:
        return whole
    search = _LengthSearch(whole, pair, bits(outputs[1]))
    for group in groups:
        if not search.longer(group) and len(group) > 1:
            for place in group:
                search.longer([place])
    if search.found.longest is None:
        search.examples()
    return search.found


@dataclass
class _LengthSearch:
    """found: the company so far. as_it_is: the row's bits beside the longest of `found`. ran: parts that ran with a length."""

    found: Company
    pair: Pair
    as_it_is: Any
    tried: itertools.count[int] = field(default_factory=itertools.count)
    ran: set[int] = field(default_factory=set)

    def longer(self, places: Sequence[Place]) -> bool:
        """Whether the row runs beside an item that is twice as long there, or half as long; keeps that item."""
        if next(self.tried) >= MOST_TRIED:
            return False
        row, longest = self.found.row, self.found.longest
        first = row if longest is None else longest
        longer = _resized(first, places, _twice)
        if bits(longer) == bits(first) or (outputs := self.pair(longer, row)) is None:
            return longest is None and self.shorter(places)
        self.ran |= {i for i, _ in places}
        if bits(outputs[1]) != self.as_it_is:
            self.found, self.as_it_is = _lengthened(self.found, row, longer), bits(outputs[1])
            parts = parts_of(row)
            if any(_is_text(parts[i], axis) for i, axis in places):  # of texts nothing else is made
                self.mate("shorter", _resized(row, places, _half))
        elif longest is not None or not self.shorter(places) or self.found.longest is None:
            self.mate("longer", longer)  # else the row has already the one length that it is cut to
        return True

    def shorter(self, places: Sequence[Place]) -> bool:
        """As `longer`, where the row itself is as long as the model takes."""
        row, shorter = self.found.row, _resized(self.found.row, places, _half)
        if bits(shorter) == bits(row) or (outputs := self.pair(row, shorter)) is None:
            return False
        self.ran |= {i for i, _ in places}
        alone = self.pair(shorter, shorter)
        if alone is not None and bits(alone[1]) == bits(outputs[1]):
            self.mate("shorter", shorter)
        else:
            self.found, self.as_it_is = _lengthened(self.found, shorter, row), bits(outputs[1])
        return True

    def examples(self) -> None:
        """As `shorter`, with an example in its place that has another object, or a text of which no other length ran."""
        row, parts = self.found.row, parts_of(self.found.row)
        unsure = [i for i, part in enumerate(parts) if is_strange(part) or (texts_of(part) and i not in self.ran)]
        for kind, other in self.found.mates.items():
            others = parts_of(other) if kind.startswith(EXAMPLE) else []
            if not any(i < len(others) and bits(others[i]) != bits(parts[i]) for i in unsure):
                continue
            beside, alone, padded = self.pair(other, row), self.pair(other, other), self.pair(row, other)
            if beside is None or alone is None or padded is None or bits(beside[1]) != self.as_it_is:
                continue  # beside a longer one the row is tried as beside any mate
            if bits(alone[1]) != bits(padded[1]):
                self.found = _lengthened(self.found, other, row)
                self.mate("longest", row)
                return

    def mate(self, kind: str, item: Any) -> None:
        """Keep one more mate, where it is another item than the row."""
        mates = self.found.mates
        if bits(item) != bits(self.found.row):
            self.found = replace(self.found, mates={**mates, f"{kind} {len(mates)}" if kind in mates else kind: item})


def _lengthened(whole: Company, row: Any, longest: Any) -> Company:
    """The company with another row and longest. Examples may be longer still, so that batches would have several shapes."""
    mates = {kind: mate for kind, mate in whole.mates.items() if not kind.startswith(EXAMPLE)}
    return Company(row, mates, longest)


def _axes(whole: Company) -> list[list[Place]]:
    """The axes of the row's parts, those of one size together: a mask is as long as what it masks. Of texts their lengths, too.

    Without those that its longest has shown to be lengths.
    """
    by_size: dict[tuple[int, bool], list[Place]] = {}
    for i, part in enumerate(parts_of(whole.row)):
        shape = () if whole.longest is not None and has_length(part) else shape_of(part)
        for axis, size in enumerate(shape):
            by_size.setdefault((size, _is_text(part, axis)), []).append((i, axis))
    return list(by_size.values())


def shape_of(part: Any) -> tuple[int, ...]:
    """The sizes of a part's axes; the last one of texts is the longest one's length."""
    texts = texts_of(part)
    shape = part.shape if isinstance(part, np.ndarray) else (len(part),) if type(part) in (list, tuple) else ()
    return (*shape, max(map(len, texts))) if texts else shape


def _is_text(part: Any, axis: int) -> bool:
    """Whether this axis is the length of texts."""
    return axis == len(shape_of(part)) - 1 and bool(texts_of(part))


def _resized(item: Any, places: Sequence[Place], resize: Callable[[Any, int], Any]) -> Any:
    """The item with these axes resized; as it is, where its class takes no such parts."""
    count = itertools.count()

    def change(part: Any) -> Any:
        this = next(count)
        for i, axis in places:
            part = resize(part, axis) if i == this else part
        return part

    try:
        return changed(item, change)
    except Exception:
        return item


def _twice(part: Any, axis: int) -> Any:
    if _is_text(part, axis):
        return with_texts(part, lambda text: text + (" " if isinstance(text, str) else b" ") + text[::-1])
    return np.concatenate([part, part], axis) if isinstance(part, np.ndarray) else part + part


def _half(part: Any, axis: int) -> Any:
    """Half of it; of a text as little as nobody cuts."""
    if _is_text(part, axis):
        return with_texts(part, lambda text: text[: max(1, len(text) // 16)])
    kept = slice((shape_of(part)[axis] + 1) // 2)
    return part[(slice(None),) * axis + (kept,)] if isinstance(part, np.ndarray) else part[kept]
