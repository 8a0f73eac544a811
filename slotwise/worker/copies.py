"""Copy dicts and lists however deep they are nested."""

from __future__ import annotations

import copy
from typing import Any

ATOMS = frozenset({bytes, str, int, float, complex, bool, type(None)})  # nobody can change these


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
