"""Tell of which kinds items are, and remember which kinds were looked at: what is known of one kind may not hold of another."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

OF_A_KIND = 4  # batches in which rows are asked again for one; one where the seconds are spent
KINDS = 64  # of items, at most: names that a client makes up are no end of kinds
LONGEST, MOST_LETTERS = 32, 12  # of a text that is a date or a number
DIGITS, LETTERS, REPEATED = re.compile(r"\d+"), re.compile(r"[^\W\d_]+"), re.compile(r"(\W+\w)\1+")
PLAIN = frozenset({bool, int, float, str, type(None)})  # what JSON has in its lists


def made_of(item: Any, other: Callable[[Any], object] = type) -> object:
    """What an item is made of: types, names, and whether something is missing, empty or no number. No lengths and no values.

    Of a date or a number in a text how it is written: the first row may decide that for all. other(part): what a part is of
    which JSON has none.
    """
    if isinstance(item, Mapping):
        return frozenset((name, made_of(part, other)) for name, part in item.items())
    if isinstance(item, list | tuple):
        types = frozenset(map(type, item))
        if types <= PLAIN:  # as may be a hundred thousand of them
            return type(item), types, any(map(operator.ne, item, item)), "" in item
        return type(item), frozenset(made_of(part, other) for part in item)
    if isinstance(item, str | bytes):
        return type(item), not item, _written(item)
    if isinstance(item, float):
        return float, item != item
    return other(item)


def _written(text: str | bytes) -> str:
    """How a date or a number is written, with 9 for digits and a for letters; "" of any other text."""
    if not isinstance(text, str) or len(text) > LONGEST or not DIGITS.search(text):
        return ""
    written = LETTERS.sub("a", DIGITS.sub("9", text))
    return REPEATED.sub(r"\1", written) if sum(map(str.isalpha, text)) <= MOST_LETTERS else ""


class Kinds:
    """Which kinds of items came. known: those of which nothing is to be found out."""

    def __init__(self, known: Collection[object] = ()) -> None:
        self.known = frozenset(known)
        self.seen: Counter[object] = Counter()  # batches that were looked at for an item of this kind

    def new(self, kinds: Iterable[object], has_time: bool) -> set[object]:
        """Those of these for which a batch is still to be looked at."""
        most = OF_A_KIND if has_time else 1
        room = len(self.seen) < KINDS
        return {kind for kind in set(kinds) - self.known if self.seen[kind] < most and (kind in self.seen or room)}

    def looked_at(self, kinds: Iterable[object]) -> None:
        """A batch was looked at for these."""
        self.seen.update(kinds)
