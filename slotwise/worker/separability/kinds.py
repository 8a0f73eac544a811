"""Tell of which kinds items are, and whose turn it is to be asked again: what is known of one kind may not hold of another."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


class AskingAgain:
    """Which batches' rows are asked again: all of the `first` ones and of those with an item of a new kind; of ever fewer one.

    left_s: seconds that the first may take longer, all together. known: kinds of which nothing is to be found out.
    new: kinds that a row of the batch that runs now is the first of.
    """

    def __init__(self, first: int, left_s: float, known: Collection[object] = ()) -> None:
        self.first, self.left_s, self.known = first, left_s, frozenset(known)
        self.count, self.new = 0, set[object]()
        self.seen = Counter[object]()  # batches that were looked at for an item of this kind

    def begin(self, kinds: Iterable[object]) -> None:
        """A batch of such items runs now."""
        most = OF_A_KIND if self.left_s > 0 else 1
        room = len(self.seen) < KINDS
        self.new = {kind for kind in set(kinds) - self.known if self.seen[kind] < most and (kind in self.seen or room)}

    @property
    def whole(self) -> bool:
        """Whether all of its rows are asked again."""
        return bool(self.new) or (self.count < self.first and self.left_s > 0)

    @property
    def due(self) -> bool:
        """Whether one is, at least."""
        return self.whole or not (self.count + 1) & self.count

    def taken(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Those of its rows that are asked again; it is counted."""
        asked = rows if self.whole else rows[-1:] if self.due else []  # the first has nothing of what runs on from row to row
        self.count += 1
        self.seen.update(self.new)
        return asked
