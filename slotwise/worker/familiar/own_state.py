"""See what an author's methods change on their handler, and have it as before where they fail.

What a call has left there when it fails is in nobody's answer: its second try is with others.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.handed_on import changed_by
from slotwise.worker.familiar.sources import is_authors, outer_values
from slotwise.worker.familiar.values import attributes, shown

CONTAINERS = (list, dict, set, deque, bytearray, defaultdict, OrderedDict, Counter)
MOST_ENTRIES = 4096  # of a container that is looked into, and in all of what is copied
ENTRY_BYTES = 256  # of an array that count as one
OURS = frozenset(("_read_alone_since", "predict_until", "metrics", "max_rows"))  # of a handler's, set by others at any time
MOST_LOOKS = 4  # at a handler's source
WEIGHTS = ("_parameters", "_buffers", "_modules")  # of torch's modules
MISSING = object()


def states_of(handle: Callable[..., Any]) -> list[dict[str, Any]]:
    """Where a stranger's handler may leave something: its object or module, and the objects there whose classes are its own."""
    root = _attributes(handle.__self__) if isinstance(handle, MethodType) else getattr(handle, "__globals__", None)
    if root is None:
        return []
    inner = list(root.values())
    own = [one for one in inner if type(one).__module__ == handle.__module__]
    own += [one.__self__ for one in inner if isinstance(one, MethodType)]  # an envelope has its handler so
    return list({id(of): of for of in (root, *map(_attributes, own)) if of is not None}.values())


def _attributes(owner: Any) -> dict[str, Any] | None:
    """An object's own; None where it has none, or does not say."""
    try:
        found = vars(owner)
    except Exception:
        return None
    return found if type(found) is dict else None


@contextmanager
def undone(states: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Within, a handler runs; where it fails, its attributes and the containers in them are as they were before."""
    before = [(of, dict(of)) for of in states]
    parts = [(value, found) for _, values in before for value in values.values() if (found := _parts(value)) is not None]
    try:
        yield
    except BaseException:
        for of, values in before:
            for name in of.keys() - values.keys():
                del of[name]
            of |= values
        for value, found in parts:
            if _differ(found, value):
                _filled(value, found)
        raise


@contextmanager
def as_before(places: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Within, a method runs that changes these (handed_on.py: holders and names); where it fails, they are as they were before.

    So is all that is in them, but what is large, or of a library's class: that stays as it was left.
    """
    before = [(holder, name, attributes(holder).get(name, MISSING)) for holder, name in places]
    contents = [put_back for _, _, value in before for put_back in _contents(value)]
    try:
        yield
    except BaseException:
        for put_back in contents:
            put_back()
        for holder, name, value in before:
            if value is not MISSING:
                setattr(holder, name, value)
            elif name in attributes(holder):
                delattr(holder, name)
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


@contextmanager
def watched(of: dict[str, Any], changed: set[str]) -> Iterator[None]:
    """Within, a method runs; then the names of what it has set or put into containers are added to `changed`."""
    before = dict(of)
    parts = {name: found for name, value in before.items() if (found := _parts(value)) is not None}
    try:
        yield
    finally:
        for name in {*before, *of} - OURS:
            value = of.get(name, MISSING)
            if value is not before.get(name, MISSING) or (name in parts and _differ(parts[name], value)):
                changed.add(name)


def _contents(value: Any) -> list[Callable[[], None]]:
    """What puts back the contents of all that is reached from a value; [] where that is too much."""
    seen, left, found, waiting = set[int](), MOST_ENTRIES, list[Callable[[], None]](), [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or type(one) in ATOMS:
            continue
        seen.add(id(one))
        parts, size, put_back = _inner(one)
        left -= 1 + size
        if left < 0:
            return []
        waiting += parts
        found += [put_back] if put_back else []
    return found


def _inner(one: Any) -> tuple[list[Any], int, Callable[[], None] | None]:
    """What a value leads to, how large that is, and what puts back its contents."""
    if type(one) in CONTAINERS:
        parts = _listed(one)
        return [*chain.from_iterable(parts)], len(one), partial(_filled, one, parts)
    if type(one) in (tuple, frozenset):
        return [*one], len(one), None
    if isinstance(one, MethodType):
        return [one.__self__], 1, None
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()], 1, None
    if isinstance(one, FunctionType) and is_authors(one):
        return [value for name, value in outer_values(one).items() if name in one.__code__.co_freevars], 1, None
    if (show := shown(one)) is not None:
        kept = show.copy() if show.nbytes <= MOST_ENTRIES * ENTRY_BYTES else show
        return [], show.nbytes // ENTRY_BYTES, partial(_shown_again, one, kept)
    inner = attributes(one) if is_authors(type(one)) else {}
    parts = [value for name, value in inner.items() if name not in WEIGHTS]
    return parts, len(inner), partial(_filled, inner, _listed(inner)) if inner else None


def _shown_again(one: Any, kept: Any) -> None:
    """Have an array show these numbers again, where it still has their shape."""
    if (now := shown(one)) is not None and now.shape == kept.shape:
        now[...] = kept


def _parts(value: Any) -> list[list[Any]] | None:
    """What is in a container, of a dict its keys and values; None where that is not looked into."""
    if type(value) not in CONTAINERS or len(value) > MOST_ENTRIES:
        return None
    return _listed(value)


def _listed(value: Any) -> list[list[Any]]:
    return [list(value), list(value.values())] if isinstance(value, dict) else [list(value)]


def _differ(before: list[list[Any]], value: Any) -> bool:
    """Whether a container has other parts than before."""
    now = _listed(value)
    return len(now[0]) != len(before[0]) or not all(all(map(operator.is_, *pair)) for pair in zip(before, now, strict=True))


def _filled(value: Any, parts: list[list[Any]]) -> None:
    """Have it hold these again."""
    if type(value) is bytearray:  # in its place: others may show its memory
        value[:] = bytes(parts[0])
        return
    value.clear()
    if isinstance(value, dict):
        for key, one in zip(*parts, strict=True):
            value[key] = one
    else:
        (value.update if type(value) is set else value.extend)(*parts)
