"""Keep apart what an author's methods leave on `self` for the requests that they were called for.

On TorchServe the batch that runs has the handler to itself, so `preprocess` may leave there what `postprocess` wants. Here many
requests are read before the first one is answered: what a method has left goes with its row, and stands there again while that
row's next method runs. Rows for which something else was left run apart. A guarded handler gets a batch as on TorchServe; what
it has left when it fails is undone, because its second try is with others.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import MethodType
from typing import Any

from slotwise.worker.copies import ATOMS

CONTAINERS = (list, dict, set, deque)
MOST_ENTRIES = 4096  # of a container that is looked into
OURS = ("_read_alone_since", "predict_until")  # set by others, at any time
MISSING = object()


class RowState(dict[str, Any]):
    """A handler's attributes as a row's methods left them. It is its row's, also where that is copied.

    changed: those that the last method has set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changed = set[str]()

    def __deepcopy__(self, memo: object) -> RowState:
        return self

    def alike(self) -> Hashable:
        """What is equal for rows that may stand beside each other."""
        return tuple((name, *_alike(self[name])) for name in sorted(self))


class OwnState:
    """What methods have left on a handler. of: its attributes. names: of those that were ever left there."""

    def __init__(self, of: dict[str, Any]) -> None:
        self.of, self.names = of, set[str]()

    @contextmanager
    def leaving(self) -> Iterator[RowState]:
        """Within, a method runs; then this is what it has left. Containers that it has changed are as before again.

        A dict that has only grown is nobody's in particular.
        """
        before, left = dict(self.of), RowState()
        parts = {name: found for name, value in before.items() if (found := _parts(value)) is not None}
        try:
            yield left
        finally:
            for name in [*before.keys() - self.of.keys(), *self.of]:
                value = self.of.get(name, MISSING)
                if name not in OURS and value is not before.get(name, MISSING):
                    left.changed.add(name)
                elif name in parts and _differ(parts[name], value, may_grow=type(value) is dict):
                    left.changed.add(name)
                    left[name] = value.copy()
                    _filled(value, parts[name])
            self.names |= left.changed
            for name in self.names - left.keys():
                value = self.of.get(name, MISSING)
                left[name] = value if _parts(value) is None else value.copy()  # the next row's method may change it

    def is_each_times(self, name: str) -> bool:
        """Whether a method has set it for what it ran, by its kind: not what is made once, when it is first needed."""
        return type(self.of.get(name)) in (*ATOMS, *CONTAINERS, tuple)

    @contextmanager
    def standing(self, state: RowState) -> Iterator[None]:
        """Within, a row's next method runs, and finds what was left for it."""
        before = {name: self.of.get(name, MISSING) for name in state}
        self._put(state)
        try:
            yield
        finally:
            self._put({name: value for name, value in before.items() if self.of.get(name, MISSING) is state[name]})

    def _put(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is MISSING:
                self.of.pop(name, None)
            else:
                self.of[name] = value


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
    """Within, a handler runs; where it fails, its attributes and the containers in them are as they were before.

    What was not there before, or None, is what it makes when it first needs it: that stays, unless it is a container.
    """
    before = [(of, dict(of)) for of in states]
    parts = [(value, found) for _, values in before for value in values.values() if (found := _parts(value)) is not None]
    try:
        yield
    except BaseException:
        for of, values in before:
            for name in [name for name, value in of.items() if name not in values and type(value) in CONTAINERS]:
                del of[name]
            of |= {name: one for name, one in values.items() if one is not None or type(of.get(name)) in CONTAINERS}
        for value, found in parts:
            if _differ(found, value, may_grow=False):
                _filled(value, found)
        raise


def _parts(value: Any) -> list[list[Any]] | None:
    """What is in a container, of a dict its keys and values; None where that is not looked into."""
    if type(value) not in CONTAINERS or len(value) > MOST_ENTRIES:
        return None
    return _listed(value)


def _listed(value: Any) -> list[list[Any]]:
    return [list(value), list(value.values())] if type(value) is dict else [list(value)]


def _differ(before: list[list[Any]], value: Any, may_grow: bool) -> bool:
    """Whether a container has other parts than before."""
    now = _listed(value)
    if len(now[0]) < len(before[0]) or (len(now[0]) > len(before[0]) and not may_grow):
        return True
    return not all(all(map(operator.is_, *pair)) for pair in zip(before, now, strict=True))


def _filled(value: Any, parts: list[list[Any]]) -> None:
    """Have it hold these again."""
    value.clear()
    if type(value) is dict:
        value.update(zip(*parts, strict=True))
    else:
        (value.update if type(value) is set else value.extend)(*parts)


def _alike(value: Any) -> tuple[object, ...]:
    """What is equal for values that are the same to whoever reads them."""
    if type(value) is tuple and len(value) <= MOST_ENTRIES:
        parts: Iterable[Any] = value
    else:
        parts = chain.from_iterable(_parts(value) or [[value]])
    known = ((type(one), one) if type(one) in ATOMS else id(one) for one in parts)
    return (type(value), frozenset(known)) if type(value) is set else (type(value), *known)
