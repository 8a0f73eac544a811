"""Read off an author's source which attributes and variables its methods change, and which they read.

What one method changes and a later one reads is of the request that they run for. Nobody can see at a call that an array, a
nested list or an object has other contents than before; so it is read off the source of the handler's class, and of the
functions and classes of its author's that it uses. Libraries are taken to change only what they are told to by a name that says
so (append, update, add_, out=...; sources.py). Where a source cannot be read, everything counts as changed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from slotwise.worker.familiar import sources
from slotwise.worker.familiar.function_reading import ANYTHING, ARGUMENT, METHODS, SELF, Effects, FunctionReading

logger = logging.getLogger(__name__)

BUILDING = frozenset(("__init__", "__new__", "__post_init__", "__setstate__", "initialize", "load"))
MISSING = object()


def effects_of(handler: Any, ours: type) -> dict[str, Effects]:
    """For each of METHODS, what it does and all of its author's that it calls. ours: the handler's class that is ours."""
    kinds = [kind for kind in type(handler).__mro__ if kind not in ours.__mro__]
    return {method: FollowedMethods(handler, kinds).of([method]) for method in METHODS}


def changed_by(handle: Callable[..., Any]) -> list[tuple[Any, str]]:
    """The places that a stranger's handler changes when it is called."""
    if isinstance(handle, MethodType):
        kinds = type(handle.__self__).__mro__[:-1]
        own = {name for kind in kinds if sources.is_authors(kind) for name in vars(kind)} - BUILDING
        return list(FollowedMethods(handle.__self__, kinds).of({handle.__name__, *own}).places.values())
    reading = FollowedMethods(None, [])
    reading.use("", handle)
    return list(reading.of([]).places.values())


def handed_on(effects: dict[str, Effects]) -> set[str]:
    """What a method changes that a later one reads; where that has several names, all that such a method changes."""
    found = set[str]()
    for i, first in enumerate(METHODS):
        for later in METHODS[i + 1 :]:
            changed, read = effects[first].changed, effects[later].read
            both = changed if ANYTHING in read else changed & (read | {ANYTHING}) if read else set()
            found |= both if any(map(sources.is_name, both)) else changed if both else set()
    return set(filter(sources.is_name, found))


class FollowedMethods:
    """Follows the functions that some methods of an object call. kinds: the object's classes that are its author's."""

    def __init__(self, owner: Any, kinds: Sequence[type], known: dict[int, dict[tuple[int, str], Any]] | None = None) -> None:
        self.owner, self.kinds = owner, kinds
        self.known = {id(owner): {}} if known is None else known
        self.effects, self.followed, self.returning = Effects(), set[FunctionType](), set[FunctionType]()
        self.passed_on, self.passed_things, self.changes_arguments = set[str](), set[str](), False

    def of(self, names: Iterable[str]) -> Effects:
        """The effects of these methods."""
        for name in names:
            for function in self.methods(name):
                self.follow(function, SELF)
        if self.changes_arguments:
            self.change(self.passed_on)
            self.effects.changed |= self.passed_things
        return self.effects

    def methods(self, name: str) -> Iterator[FunctionType]:
        """Those of this name in all of the classes: one may call that of its base."""
        for kind in self.kinds:
            yield from sources.functions_in(vars(kind).get(name))

    def follow(self, function: FunctionType, first: str) -> None:
        """Add what it does. first: what its first parameter is."""
        if function in self.followed:
            return
        self.followed.add(function)
        try:
            FunctionReading(self, function, first).note()
        except Exception as error:
            logger.info("%s.%s cannot be read: %r", function.__module__, function.__qualname__, error)
            self.change([ANYTHING], rebound=True)
            self.effects.read.add(ANYTHING)

    def change(self, names: Iterable[str], *, rebound: bool = False) -> None:
        """Something is changed; in place, unless it is `rebound`."""
        for name in names:
            if name == ARGUMENT:
                self.changes_arguments = True
            elif rebound or sources.may_change(self.value(name)):
                self.effects.changed.add(ANYTHING if name == SELF else name)
                self._keep_place(name)
                self.effects.changed |= set() if (value := self.value(name)) is MISSING else sources.things_of(value)

    def _keep_place(self, name: str) -> None:
        module, _, variable = name.rpartition(".")
        kinds = [kind for kind in self.kinds if name in vars(kind)]
        own = sources.attributes(self.owner)
        holder = sys.modules.get(module) if module else kinds[0] if kinds and name not in own else self.owner
        for one in own if name in (SELF, ANYTHING) else [variable]:
            self.effects.places[id(holder), one] = holder, one

    def read(self, name: str) -> None:
        """An attribute is read, which may be a method, and what is kept there may change by being used."""
        self.effects.read.add(name)
        for function in self.methods(name):
            self.follow(function, SELF)
        self.use(name, self.value(name))

    def use(self, name: str, value: Any) -> None:
        """Follow a function of the author's that is kept under this name; an object of the author's may change itself."""
        while isinstance(value, partial):
            self.passed_on.add(name)
            self.passed_things = self.passed_things.union(*map(sources.things_of, (*value.args, *value.keywords.values())))
            value = value.func
        if isinstance(value, FunctionType):
            before = len(self.effects.changed)
            if sources.is_authors(value) and name not in dir(type(self.owner)):
                self.follow(value, ARGUMENT)
            if value.__closure__ and len(self.effects.changed) > before:
                self.change([name], rebound=True)
            return
        for part in sources.with_parts(value):
            self.effects.read |= sources.things_of(part)
            if places := places_in(part, self.known):
                self.effects.changed |= {name, *sources.things_of(part)}
                self.effects.places |= places

    def value(self, name: str) -> Any:
        """What is there now."""
        module, _, variable = name.rpartition(".")
        if module:
            return getattr(sys.modules.get(module), variable, MISSING)
        for values in (sources.attributes(self.owner), sources.attributes(self.owner).get("_modules"), *map(vars, self.kinds)):
            if values and name in values:
                return values[name]
        return MISSING

    def returned(self, name: str) -> set[str]:
        """What the methods or properties of this name return, or something in it."""
        found = set[str]()
        for function in self.methods(name):
            if function not in self.returning:
                self.returning.add(function)
                found |= FunctionReading(self, function, SELF).returned() - {ARGUMENT}
                self.returning.discard(function)
        return found


def places_in(value: Any, known: dict[int, dict[tuple[int, str], Any]]) -> dict[tuple[int, str], Any]:
    """What an object of an author's class changes of itself, or of anything else, by any of its methods. known: by ids."""
    if isinstance(value, MethodType):
        value = value.__self__
    kinds = [kind for kind in type(value).__mro__ if sources.is_authors(kind)]
    if kinds and id(value) not in known:
        known[id(value)] = {}  # until more is known: it may lead to itself
        names = {name for kind in kinds for name in vars(kind)} - BUILDING
        known[id(value)] = FollowedMethods(value, kinds, known).of(names).places
    return known[id(value)] if kinds else {}
