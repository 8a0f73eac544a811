"""See at the first calls of a handler's methods what they change in whatever depth, and put it back where one fails.

A source does not show all: what a hook of a network keeps, a class behind a decorator, a name that is put together. That is
looked for in the handler, its classes, and the variables of its author's modules. As it takes a while, later not at every call.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType, ModuleType
from typing import Any

from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.contents import MOST_ENTRIES, OURS, KeptParts, kept_of, put, same
from slotwise.worker.familiar.sources import is_authors
from slotwise.worker.familiar.uses import ANYTHING
from slotwise.worker.familiar.values import MISSING

FIRST_CALLS = 16  # that are all looked at; then those whose number is a power of two
MOST_MODULES = 64
MOST_IN_ALL = 4 * MOST_ENTRIES


class Look:
    """What is there at one time, by name: an attribute's, or a variable's as "module.NAME"."""

    def __init__(self, holders: Sequence[tuple[Any, str]], besides: Sequence[Any], names: Container[str] | None) -> None:
        self.before = [(holder, prefix, _variables(holder, prefix, names)) for holder, prefix in holders]
        self.kept = dict[str, list[KeptParts]]()
        entries_left, left_out = MOST_IN_ALL, set(map(id, besides))
        seen = set(left_out)  # by any variable: what two of them lead to is the first one's
        for _, prefix, values in self.before:
            for name, value in values.items():
                if entries_left > 0 and type(value) not in ATOMS:
                    parts = kept_of(value, seen if prefix else set(left_out))
                    entries_left -= 1 + sum(len(kept.before[-1]) for kept in parts)
                    self.kept.setdefault(prefix + name, []).extend(parts)
        self.names = names

    def changed(self) -> set[str]:
        """The names of what is no longer as it was."""
        found = {name for name, parts in self.kept.items() if any(map(_differs, parts))}
        for holder, prefix, values in self.before:
            now = _variables(holder, prefix, self.names)
            names = [name for name in {*now, *values} if not same(now.get(name, MISSING), values.get(name, MISSING))]
            found.update(prefix + name for name in names)
        return found

    def put_back(self) -> None:
        """Have all of it as it was."""
        for kept in (kept for parts in self.kept.values() for kept in parts):
            if _differs(kept):
                with suppress(Exception):
                    kept.put_back()
        for holder, prefix, values in self.before:
            now = _variables(holder, prefix, self.names)
            for name in {*now, *values}:
                if not same(now.get(name, MISSING), value := values.get(name, MISSING)):
                    with suppress(Exception):
                        put(holder, name, value)


class Looking:
    """Looks at some calls of a handler's methods. kinds: its classes that are its author's."""

    def __init__(self, handler: Any, kinds: Sequence[type]) -> None:
        self.besides = (handler, self, *kinds)
        modules = authors_modules([*kinds, *map(type, vars(handler).values())])
        self.holders = [(handler, ""), *((kind, "") for kind in kinds), *((one, f"{one.__name__}.") for one in modules)]
        self.calls, self.running, self.lock = Counter[str](), 0, threading.Lock()

    @contextmanager
    def at(self, method: str) -> Iterator[tuple[Callable[[], set[str]], Callable[[], bool]]]:
        """Within, this method runs; then it tells the names of what that has changed. All is put back where it fails.

        Not of a call that is not looked at, or beside which another ran: whose a change is nobody knows then. The second
        function tells whether no other has begun since.
        """
        with self.lock:
            alone, self.running = not self.running, self.running + 1
            self.calls[method] += 1
            count, entered = self.calls[method], self.calls.total()
        looked_at = alone and (count <= FIRST_CALLS or not count & (count - 1))
        look = Look(self.holders, self.besides, None) if looked_at else None

        def last() -> bool:
            return entered == self.calls.total()

        try:
            yield lambda: look.changed() if look and last() else set(), last
        except BaseException:
            if look and last():
                look.put_back()
            raise
        finally:
            with self.lock:
                self.running -= 1

    @contextmanager
    def kept(self, names: Container[str]) -> Iterator[None]:
        """Within, what has these names may change; where it fails it is put back."""
        look = Look(self.holders, self.besides, None if ANYTHING in names else names)
        try:
            yield
        except BaseException:
            look.put_back()
            raise


def authors_modules(kinds: Sequence[type]) -> list[ModuleType]:
    """The modules of an author's that these classes are of, and those that they have something of."""
    waiting, found = [kind.__module__ for kind in kinds if is_authors(kind)], dict[str, ModuleType]()
    while waiting and len(found) < MOST_MODULES:
        name = waiting.pop(0)
        module = sys.modules.get(name)
        if name in found or module is None:
            continue
        found[name] = module
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType) and is_authors(value):
                waiting.append(value.__name__)
            elif isinstance(value, type | FunctionType) and is_authors(value):
                waiting.append(value.__module__)
    return list(found.values())


def _variables(holder: Any, prefix: str, names: Container[str] | None) -> dict[str, Any]:
    own = dict(vars(holder))
    return {
        name: value
        for name, value in own.items()
        if name not in OURS and not name.startswith("__") and not isinstance(value, ModuleType)
        if names is None or prefix + name in names
    }


def _differs(kept: KeptParts) -> bool:
    try:
        return kept.differs()
    except Exception:  # others change it meanwhile, or the author's own object answers with anything
        return False
