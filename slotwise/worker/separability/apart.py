"""Say how far two answers are apart, and leave out of that what is another one each time: the time, an id, what is drawn.

An answer is what JSON holds. Floats are measured by the largest of those beside them in a list, also where they stand in a
text; whole numbers, words and names by themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ANYTHING = object()  # in the place of what is another one each time
AGAIN = 1e-6  # so far the same question's answers are apart at most: who draws numbers by chance is near by chance
KERNELS = 1e-4  # so far two kernels for float32 are apart at most; those for less precise numbers may be farther
NUMBER = re.compile(r"([-+]?\d*\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+)")
LONGEST = 100_000  # letters of a text in which numbers are looked for
MOST_PARTS = 1000  # of a list in which each may be another one each time


@dataclass
class Apart:
    """How far two answers are apart at most, of the largest numbers. whole: infinite where whole numbers are more than 1 apart.

    digits: whether whole numbers in a text differ. words: whether anything else does.
    """

    floats: float = 0.0
    whole: float = 0.0
    digits: bool = False
    words: bool = False

    def within(self, floats: float, whole: float = 0.0) -> bool:
        """Whether numbers are no farther apart, and all else is the same."""
        return self.floats <= floats and self.whole <= whole and not self.digits and not self.words


def apart(one: Any, other: Any) -> Apart:
    """How far these are apart, but for ANYTHING in either."""
    found, waiting = Apart(), [(one, other, 0.0)]
    while waiting:
        a, b, scale = waiting.pop()
        if a is b or a is ANYTHING or b is ANYTHING:
            continue
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            waiting += [(a[name], b[name], 0.0) for name in a]
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            scale = _largest((*a, *b))
            waiting += [(*pair, scale) for pair in zip(a, b, strict=True)]
        elif _is_number(a) and _is_number(b):
            if type(a) is int and type(b) is int:
                found.whole = max(found.whole, math.inf if abs(a - b) > 1 else _far(a, b, 1.0))
            else:
                found.floats = max(found.floats, _far(a, b, scale))
        elif isinstance(a, str) and isinstance(b, str):
            _of_texts(found, a, b)
        elif type(a) is not type(b) or a != b:
            found.words = True
    return found


def steady(one: Any, other: Any) -> Any:
    """What these two answers to the same question have in common: ANYTHING stands for what differs."""
    try:
        return _steady(one, other)
    except RecursionError:
        return ANYTHING


def hidden(answer: Any, pattern: Any) -> Any:
    """An answer, with ANYTHING where that is in the pattern."""
    if pattern is ANYTHING:
        return ANYTHING
    if isinstance(answer, dict) and isinstance(pattern, dict):
        return {name: hidden(part, pattern.get(name)) for name, part in answer.items()}
    if isinstance(answer, list) and isinstance(pattern, list) and len(answer) == len(pattern) <= MOST_PARTS:
        return list(map(hidden, answer, pattern))
    return answer


def _steady(one: Any, other: Any) -> Any:
    if apart(one, other).within(AGAIN):
        return one
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {name: _steady(one[name], other[name]) for name in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other) <= MOST_PARTS:
        return list(map(_steady, one, other))
    return ANYTHING


def _of_texts(found: Apart, one: str, other: str) -> None:
    if one == other:
        return
    parts = [NUMBER.split(text) if len(text) <= LONGEST else [text] for text in (one, other)]
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        found.words = True
        return
    for a, b in zip(parts[0][1::2], parts[1][1::2], strict=True):
        if a != b and a.isdigit() and b.isdigit():
            found.digits = True
        elif a != b:
            found.floats = max(found.floats, _far(float(a), float(b), 0.0))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _largest(parts: Iterable[Any]) -> float:
    return max((abs(part) for part in parts if type(part) is float and math.isfinite(part)), default=0.0)


def _far(one: Any, other: Any, scale: float) -> float:
    """How far two numbers are apart, of the largest. NaN is near NaN, infinity near itself only."""
    if one == other or (one != one and other != other):
        return 0.0
    try:
        far = abs(one - other) / max(abs(one), abs(other), scale)
    except OverflowError:  # an integer that no float can hold
        return math.inf
    return float(far) if math.isfinite(far) else math.inf
