"""See what an author's methods change on their handler, and have it as before where they fail.

What a call has left there when it fails is in nobody's answer: its second try is with others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

from slotwise.worker.familiar.contents import CONTAINERS, MOST_ENTRIES, OURS, differ, filled, kept_of, listed, put
from slotwise.worker.familiar.handed_on import changed_by
from slotwise.worker.familiar.values import MISSING, attributes

LOOKED_INTO = (*CONTAINERS, defaultdict, OrderedDict, Counter)
MOST_LOOKS = 4  # at a handler's source


def states_of(handle: Callable[..., Any]) -> list[dict[str, Any]]:
    """Where a stranger's handler may leave something: its object or module, and the objects there whose classes are its own."""
    root = attributes(handle.__self__) if isinstance(handle, MethodType) else getattr(handle, "__globals__", {})
    inner = list(root.values())
    own = [one for one in inner if type(one).__module__ == handle.__module__]
    own += [one.__self__ for one in inner if isinstance(one, MethodType)]  # an envelope has its handler so
    return list({id(of): of for of in (root, *map(attributes, own)) if type(of) is dict}.values())


@contextmanager
def undone(states: Sequence[dict[str, Any]], alone: Callable[[], bool] = lambda: True) -> Iterator[Callable[[], set[str]]]:
    """Within, a handler runs; where it fails, its attributes and the containers in them are as they were before.

    What it gives tells the names of what is set, or put into containers, by then. alone(): whether no other call has begun
    since; where one has, all stays, as that call may use it.
    """
    before = [(of, dict(of)) for of in states]
    parts = {id(value): found for _, values in before for value in values.values() if (found := _parts(value)) is not None}

    def differs(value: Any) -> bool:
        return id(value) in parts and differ(parts[id(value)], listed(value))

    def changed() -> set[str]:
        pairs = [(name, of.get(name, MISSING), values.get(name, MISSING)) for of, values in before for name in {*of, *values}]
        return {name for name, now, was in pairs if now is not was or differs(was)} - OURS

    try:
        yield changed
    except BaseException:
        if alone():
            for of, values in before:
                for name in of.keys() - values.keys():
                    del of[name]
                of |= values
                for value in filter(differs, values.values()):
                    filled(value, parts[id(value)])
        raise


@contextmanager
def as_before(places: Iterable[tuple[Any, str]], alone: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within, a method runs that changes these (handed_on.py: holders and names); where it fails, they are as they were before.

    So is all that is in them, but what is large, or of a library's class: that stays as it was left. alone: see `undone`.
    """
    before = [(holder, name, attributes(holder).get(name, MISSING)) for holder, name in places]
    contents = [kept for _, _, value in before for kept in kept_of(value)]
    try:
        yield
    except BaseException:
        if alone():
            for kept in contents:
                kept.put_back()
            for holder, name, value in before:
                if attributes(holder).get(name, MISSING) is not value:
                    put(holder, name, value)
        raise


class Undoing:
    """Undoes what calls of a stranger's handler that fail have left: `with undoing(context): handle(...)`."""

    def __init__(self, handle: Callable[..., Any]) -> None:
        self.handle = handle
        self._places, self._known_of, self._looks = list[tuple[Any, str]](), -1, 0

    @contextmanager
    def __call__(self, context: Any) -> Iterator[None]:
        """Within, it is called with this context."""
        states = states_of(self.handle)
        if self._looks < MOST_LOOKS and self._known_of < (now := sum(map(len, states))):  # it has made something
            self._places, self._known_of, self._looks = changed_by(self.handle), now, self._looks + 1
        with as_before(self._places), undone([*states, attributes(context)]):
            yield


def _parts(value: Any) -> list[list[Any]] | None:
    """What is in a container, of a dict its keys and values; None where that is not looked into."""
    if type(value) not in LOOKED_INTO or len(value) > MOST_ENTRIES:
        return None
    return listed(value)
