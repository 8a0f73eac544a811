"""Read off an author's source which attributes and variables its methods change, and which they read.

What one method changes and a later one reads is of the request that they run for. Nobody can see at a call that an array, a
nested list or an object has other contents than before; so it is read off the source of the handler's class, and of the
functions and classes of its author's that it uses. Libraries are taken to change only what they are told to by a name that says
so (append, update, add_, out=...; sources.py). Where a source cannot be read, everything counts as changed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from slotwise.worker.familiar import process_wide, sources, values
from slotwise.worker.familiar.function_reading import FunctionReading
from slotwise.worker.familiar.tokenizers_told import TOLD
from slotwise.worker.familiar.uses import ANYTHING, ARGUMENT, FIRST, HOOKS, MADE, METHODS, SELF, Effects
from slotwise.worker.familiar.values import MISSING

logger = logging.getLogger(__name__)

MODELS = ("inference", "predict")  # the methods that see rows of several requests
BUILDING = frozenset(("__init__", "__new__", "__post_init__", "__setstate__", "initialize", "load"))


def effects_of(handler: Any, ours: type, methods: Sequence[str] = METHODS, told: bool = False) -> dict[str, Effects]:
    """For each of these methods, what it does and all of its author's that it calls. ours: the handler's class that is ours.

    told: only what the source says is changed counts.
    """
    kinds = [kind for kind in type(handler).__mro__ if kind not in ours.__mro__]
    found = dict[str, Effects]()
    for method in methods:
        try:
            found[method] = FollowedMethods(handler, kinds, told=told).of([method])
        except Exception as error:  # an author's object may answer with anything
            logger.info("%s cannot be read: %r", method, error)
            found[method] = Effects({ANYTHING}, {ANYTHING})
    return found


def changed_by(handle: Callable[..., Any]) -> list[tuple[Any, str]]:
    """The places that a stranger's handler changes when it is called."""
    if isinstance(handle, MethodType):
        kinds = type(handle.__self__).__mro__[:-1]
        own = sources.methods_of(filter(sources.is_authors, kinds)) - BUILDING
        return list(FollowedMethods(handle.__self__, kinds, told=True).of({handle.__name__, *own}).places.values())
    reading = FollowedMethods(None, [], told=True)
    reading.use("", handle)
    return list(reading.of([]).places.values())


def changed_on(owner: Any) -> list[tuple[Any, str]]:
    """The places that an object's methods change which are its author's."""
    kinds = [kind for kind in type(owner).__mro__ if sources.is_authors(kind)]
    names = sources.methods_of(kinds) - BUILDING
    return list(FollowedMethods(owner, kinds, told=True).of(names).places.values())


def handed_on(effects: dict[str, Effects]) -> set[str]:
    """What a method changes that a later one reads; where that has several names, all that such a method changes."""
    found = {name for one in effects.values() for name in one.changed & process_wide.TOGETHER}
    methods = list(effects)
    found |= set().union(*(effects[one].changed for one in methods if one in MODELS)) & {process_wide.GENERATOR}
    for i, first in enumerate(methods):
        for later in methods[i + 1 :]:
            if (first, later) == ("collate", "predict"):  # which is called at once, for the same rows
                continue
            changed, read = effects[first].changed, effects[later].read
            both = changed if ANYTHING in read else changed & (read | {ANYTHING, MADE}) if read else set()
            found |= both if any(map(values.is_name, both)) else changed if both else set()
    return set(filter(values.is_name, found))


def look_at_what_is_kept(
    handler: Any, ours: type, hooks: Sequence[str] = HOOKS, known: Collection[str] = frozenset((ANYTHING,))
) -> bool:
    """Whether an author's hooks leave something for later ones; the log says what. ours: the handler's class that is ours.

    known: names that nothing is said of. Where `collate` or `predict` sets a seed, rows run one by one: a row in a batch gets
    other numbers of it than alone.
    """
    if not sources.is_authors(type(handler)) or "_effects" in vars(handler):  # a TorchServeHandler has looked itself
        return False
    effects = effects_of(handler, ours, hooks, told=True)
    if any(process_wide.SEED in effects[name].changed for name in (*MODELS, "collate") if name in effects):
        logger.warning("a seed is set for each batch: rows run one by one, for a row alone gets other numbers than in a batch")
        vars(handler)["max_rows"] = 1
    first = [effects[name] for name in FIRST if name in effects]
    together = set().union(*(one.changed for one in first)) & process_wide.TOGETHER  # threads beside the streams' call these
    if names := handed_on(effects).difference(known) | together:
        what = "what a hook leaves in %s seems to be of a request, and may get into others' answers: hand it on with the item"
        logger.warning(what, ", ".join(sorted(names)))
    own = _for_itself(first).difference(known)
    if own and not names:
        what = "requests are read one after the other, for `decode` keeps what it reads in %s: keep it in its variables"
        logger.warning(what, ", ".join(sorted(own)))
    if own or names:
        handler._read_one_at_a_time()
    return bool(names)


def _for_itself(effects: Sequence[Effects]) -> set[str]:
    """What methods change that run in several threads, and read: another thread may change it in between."""
    found = set[str]()
    for one in effects:
        found |= one.changed if ANYTHING in one.read else one.changed & (one.read | {TOLD} | ({MADE} if one.read else set()))
    return set(filter(values.is_name, found))


def seen_by_others(handler: Any, ours: type, method: str) -> set[str]:
    """What a method changes that it reads, or a whole process has, as its source says: who runs beside it sees it.

    ours: as above. ANYTHING where its source does not say what of the handler it changes, or nobody can read it.
    """
    following = FollowedMethods(handler, [kind for kind in type(handler).__mro__ if kind not in ours.__mro__], told=True)
    following.lenient = True
    try:
        called = following.value(method)
        functions = [one for one in sources.functions_in(called) if sources.source_of(one.__code__)]
        effects = following.of([method])
        if method in vars(handler):  # where its class has another one
            for function in functions:
                following.follow(function, SELF if getattr(called, "__self__", None) is handler else ARGUMENT)
    except Exception as error:  # an author's object may answer with anything
        logger.info("%s cannot be read: %r", method, error)
        return {ANYTHING}
    if not functions:
        return {ANYTHING}
    return set(filter(values.is_name, effects.changed & (effects.read | process_wide.TOGETHER | {ANYTHING})))


class FollowedMethods:
    """Follows the functions that some methods of an object call. kinds: the object's classes that are its author's.

    told: only what the source says is changed counts, by one name. lenient: what cannot be read changes nothing.
    """

    lenient = False

    def __init__(self, owner: Any, kinds: Sequence[type], known: dict[int, Effects] | None = None, told: bool = False) -> None:
        self.owner, self.kinds, self.told = owner, kinds, told
        self.known = {id(owner): Effects()} if known is None else known
        self.effects, self.followed, self.returning = Effects(), set[tuple[FunctionType, str]](), set[FunctionType]()
        self.passed_on, self.told_how, self.changes_arguments = set[str](), set[str](), False

    def of(self, names: Iterable[str]) -> Effects:
        """The effects of these methods."""
        for name in names:
            for function in self.methods(name):
                self.follow(function, self.first_of(name))
        if self.changes_arguments:
            self.change(self.passed_on)
        return self.effects

    def methods(self, name: str) -> Iterator[FunctionType]:
        """Those of this name in all of the classes: one may call that of its base."""
        for kind in self.kinds:
            yield from sources.functions_in(vars(kind).get(name))

    def first_of(self, name: str) -> str:
        """What the first parameter of the methods of this name is."""
        found = [vars(kind)[name] for kind in self.kinds if name in vars(kind)]
        return ARGUMENT if found and all(isinstance(one, staticmethod) for one in found) else SELF

    def follow(self, function: FunctionType, first: str) -> None:
        """Add what it does. first: what its first parameter is."""
        if (function, first) in self.followed:
            return
        self.followed.add((function, first))
        try:
            FunctionReading(self, function, first).note()
        except Exception as error:
            logger.info("%s.%s cannot be read: %r", function.__module__, function.__qualname__, error)
            if self.lenient:
                return
            self.change([ANYTHING], rebound=True)
            self.effects.read.add(ANYTHING)

    def change(self, names: Iterable[str], *, rebound: bool = False, perhaps: bool = False) -> None:
        """Something is changed; in place, unless it is `rebound`. perhaps: nothing says so, nor that it stays as it is."""
        for name in names:
            value = self.value(name)
            if name == ARGUMENT:
                self.changes_arguments = True
            elif rebound or value is MISSING or values.may_change(value):
                self.effects.changed.add(ANYTHING if name == SELF else name)
                self.effects.changed |= set() if value is MISSING or self.told else values.things_in(value)
                if not perhaps:
                    self._keep_place(name)

    def _keep_place(self, name: str) -> None:
        module, _, variable = name.rpartition(".")
        kinds = [kind for kind in self.kinds if name in vars(kind)]
        own = values.attributes(self.owner)
        holder = sys.modules.get(module) if module else kinds[0] if kinds and name not in own else self.owner
        for one in own if name in (SELF, ANYTHING) else [variable]:
            self.effects.places[id(holder), one] = holder, one

    def read(self, name: str) -> None:
        """An attribute is read, which may be a method, and what is kept there may change by being used."""
        self.effects.read.add(name)
        for function in self.methods(name):
            self.follow(function, self.first_of(name))
        self.use(name, self.value(name))

    def use(self, name: str, value: Any) -> None:
        """What is kept under a name is used: an author's functions are followed, an author's objects may change themselves."""
        if value is MISSING:
            return
        if not self.told:
            self.effects.read |= values.things_in(value)
        for part in values.reached(value):
            before = len(self.effects.changed)
            for function in (
                [] if part is value and any(name in vars(kind) for kind in self.kinds) else sources.functions_in(part)
            ):
                if getattr(part, "__self__", None) is self.owner:
                    self.follow(function, SELF)
                elif sources.is_authors(function):
                    self.follow(function, ARGUMENT)
            self._merge(name, part, effects_in(part, self.known, self.told))
            if len(self.effects.changed) > before and getattr(part, "__closure__", None):
                self.change([name], rebound=True)
        if isinstance(value, partial):
            self.passed_on.add(name)

    def _merge(self, name: str, part: Any, effects: Effects) -> None:
        """What an object under this name changes and reads besides itself is known by its own name."""
        self.effects.read |= {one for one in effects.read if "." in one or " " in one}
        self.effects.changed |= {one for one in effects.changed if "." in one or " " in one}
        if effects.changed:
            self.effects.changed |= {name} if self.told else {name, *values.things_in(part)}
        self.effects.places |= effects.places

    def value(self, name: str) -> Any:
        """What is there now, or MISSING."""
        module, _, variable = name.rpartition(".")
        if module:
            return getattr(sys.modules.get(module), variable, MISSING)
        own = values.attributes(self.owner)
        for found in (own, own.get("_modules"), *map(vars, self.kinds)):
            if found and name in found:
                return found[name]
        return MISSING

    def gives_of_itself(self, name: str, method: str) -> bool:
        """Whether a method of the object that has this name may give a part of it."""
        value = self.value(name)
        kinds = [kind for kind in type(value).__mro__ if sources.is_authors(kind)]
        functions = [one for kind in kinds for one in sources.functions_in(vars(kind).get(method))]
        return not functions or bool(FollowedMethods(value, kinds, self.known).returned(functions, SELF) - {ARGUMENT})

    def returned(self, functions: Iterable[FunctionType], first: str) -> set[str]:
        """What these return, or something in it."""
        found = set[str]()
        for function in functions:
            if function not in self.returning:
                self.returning.add(function)
                try:
                    found |= FunctionReading(self, function, first).returned()
                except Exception:  # who follows it sees that
                    found.add(ANYTHING)
                self.returning.discard(function)
        return found


def effects_in(value: Any, known: dict[int, Effects], told: bool = False) -> Effects:
    """What an object of an author's class changes and reads by any of its methods. known: by objects' ids."""
    kinds = [kind for kind in type(value).__mro__ if sources.is_authors(kind)]
    if not kinds:
        return Effects()
    if id(value) not in known:
        known[id(value)] = Effects()  # until more is known: it may lead to itself
        names = sources.methods_of(kinds) - BUILDING
        known[id(value)] = FollowedMethods(value, kinds, known, told).of(names)
    return known[id(value)]
