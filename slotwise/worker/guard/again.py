"""Keep what a server handed over, so that theirs can be given the same again, however deep it is and whatever it did to it."""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotwise.worker.copies import copied

PLAIN = frozenset({bytes, str, int, float, bool, type(None)})  # nobody can change these


@dataclass(frozen=True, slots=True)
class Again:
    """A value that who gets it may change. `make(kept)` is the value as it was, as often as it is wanted."""

    kept: Any
    make: Callable[[Any], Any]


class Unchanging(dict[str, Any]):
    """Named values that nobody can change."""


def keep(fields: Any) -> dict[str, Any]:
    """Named values, so that `given` makes them again. Raises what copying an object that is neither JSON nor bytes raises."""
    if PLAIN.issuperset(map(type, fields.values())):
        return Unchanging(fields)
    return {name: value if type(value) in PLAIN else _again(value) for name, value in fields.items()}


def given(kept: dict[str, Any]) -> dict[str, Any]:
    """The values as they were: who gets them may do anything to them."""
    if type(kept) is Unchanging:
        return {**kept}
    return {name: value.make(value.kept) if type(value) is Again else value for name, value in kept.items()}


def _again(value: Any) -> Again:
    if type(value) is bytearray:
        return Again(bytes(value), bytearray)
    if type(value) is dict or type(value) is list:  # a server makes these of JSON only
        try:
            return Again(marshal.dumps(value), marshal.loads)  # a tenth of the time that a copy takes
        except ValueError:  # nested deeper than marshal goes, or no JSON after all
            return Again(copied(value), copied)
    return Again(copy.deepcopy(value), copy.deepcopy)
