"""Read off an author's source which attributes and variables its methods change, and which they read.

What one method changes and a later one reads is of the request that they run for. Nobody can see at a call that an array, a
nested list or an object has other contents than before; so it is read off the source of the handler's class, and of the
functions and classes of its author's that it uses. Libraries are taken to change only what they are told to by a name that says
so (append, update, add_, out=...; sources.py). Where a source cannot be read, everything counts as changed.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from slotwise.worker.familiar import sources

METHODS = ("preprocess", "inference", "postprocess")  # in the order in which a request goes through them
SELF, ANYTHING, ARGUMENT = "self", "everything", "an argument"  # the handler itself; all it has; what a function was given
BUILDING = frozenset(("__init__", "__new__", "__post_init__", "__setstate__", "initialize", "load"))
MISSING = object()


@dataclass
class Effects:
    """What a method changes and reads, by name: an attribute's, a variable's as "module.NAME", or ANYTHING."""

    changed: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


def effects_of(handler: Any, ours: type) -> dict[str, Effects]:
    """For each of METHODS, what it does and all of its author's that it calls. ours: the handler's class that is ours."""
    kinds = [kind for kind in type(handler).__mro__ if kind not in ours.__mro__]
    return {method: Reading(handler, kinds).of([method]) for method in METHODS}


def handed_on(effects: dict[str, Effects]) -> set[str]:
    """What a method changes that a later one reads; where that has several names, all that such a method changes."""
    found = set[str]()
    for i, first in enumerate(METHODS):
        for later in METHODS[i + 1 :]:
            changed, read = effects[first].changed, effects[later].read
            both = changed if ANYTHING in read else changed & (read | {ANYTHING}) if read else set()
            found |= both if any(map(sources.is_name, both)) else changed if both else set()
    return set(filter(sources.is_name, found))


class Reading:
    """Follows the functions that some methods of an object call. kinds: the object's classes that are its author's."""

    def __init__(self, owner: Any, kinds: Sequence[type], known: dict[int, bool] | None = None) -> None:
        self.owner, self.kinds = owner, kinds
        self.known = {id(owner): False} if known is None else known
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
        if (tree := sources.tree_of(function)) is None:
            self.effects.changed.add(ANYTHING)
            self.effects.read.add(ANYTHING)
        else:
            FunctionReading(self, function, tree, first).note()

    def change(self, names: Iterable[str], *, rebound: bool = False) -> None:
        """Something is changed; in place, unless it is `rebound`."""
        for name in names:
            if name == ARGUMENT:
                self.changes_arguments = True
            elif rebound or sources.may_change(self.value(name)):
                self.effects.changed.add(ANYTHING if name == SELF else name)
                self.effects.changed |= set() if (value := self.value(name)) is MISSING else sources.things_of(value)

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
                self.effects.changed.add(name)
            return
        for part in sources.with_parts(value):
            self.effects.read |= sources.things_of(part)
            if changes_itself(part, self.known):
                self.effects.changed |= {name, *sources.things_of(part)}

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
            if function not in self.returning and (tree := sources.tree_of(function)) is not None:
                self.returning.add(function)
                found |= FunctionReading(self, function, tree, SELF).returned() - {ARGUMENT}
                self.returning.discard(function)
        return found


class FunctionReading:
    """One function's source. known: what its local variables may be, or be a part of."""

    def __init__(self, reading: Reading, function: FunctionType, tree: ast.AST, first: str) -> None:
        self.reading, self.module, self.tree, self.outer = reading, function.__module__, tree, sources.outer_values(function)
        stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        elsewhere = {name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        given, inner = sources.parameters(tree)
        self.own = (stored | {*given, *inner}) - elsewhere
        self.known: dict[str, set[str]] = {name: {ARGUMENT} for name in inner}
        if function.__name__ not in METHODS or first != SELF:  # what those are given is the request's
            self.known |= {name: {ARGUMENT} for name in given}
        if given:
            self.known[given[0]] = {first} if first else set()
        pairs, count = list(sources.assignments(tree)), -1
        while count != (count := sum(map(len, self.known.values()))):  # an alias may be used before the line that makes it
            for target, value in pairs:
                for name in self.own.intersection(sources.names_in(target)):
                    if SELF not in self.known.get(name, ()) or isinstance(target, ast.Name):
                        self.known.setdefault(name, set()).update(self.roots(value))

    def note(self) -> None:
        """Add what it does to the reading."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                self._note_call(node)
            elif isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self._note_read(node)
                else:
                    self._note_stored(node)
            elif isinstance(node, ast.AugAssign):
                self.reading.change(self.roots(node.target))
                if isinstance(node.target, ast.Attribute) and SELF in self.roots(node.target.value):
                    self.reading.read(node.target.attr)
        for target, value in sources.assignments(self.tree):
            if isinstance(target, ast.Attribute | ast.Subscript) and self.roots(target) - {ARGUMENT}:  # two names for one thing
                self.reading.change(self.roots(value) - {SELF})

    def returned(self) -> set[str]:
        """What it returns, or something in it."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
        return set().union(*(self.roots(node.value) for node in nodes))

    def roots(self, node: ast.AST | None) -> set[str]:
        """What this expression is, or is a part of: SELF, an ARGUMENT, an attribute, a variable of a module."""
        match node:
            case ast.Name(id=name):
                if name in self.own or name in self.known:
                    return self.known.get(name, set())
                return {self._outer_name(name)} if name in self.outer or not hasattr(builtins, name) else set()
            case ast.Attribute(value=value, attr=attr):
                return self._of_attribute(value, attr)
            case ast.Call(func=ast.Name(id=name), args=args) if name in sources.SHOW_PARTS or sources.is_authors(
                self.outer.get(name)
            ):
                return set().union(*map(self.roots, args)) - (set() if name == "type" else {SELF})
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                of = self.roots(value)
                if SELF in of or sources.is_super(value):
                    return self.reading.returned(attr)
                return of if attr in sources.GIVE_PARTS and not self._is_module(value) else set()
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.roots(value)
            case ast.IfExp(body=one, orelse=other):
                return self.roots(one) | self.roots(other)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return set().union(*map(self.roots, values))
        return set()

    def _of_attribute(self, value: ast.AST, attr: str) -> set[str]:
        of = self.roots(value)
        if self._is_module(value):
            module = self.outer[value.id]  # type: ignore[attr-defined]
            return {f"{module.__name__}.{attr}"} if sources.is_authors(module) else set()
        if SELF not in of:
            return of
        own = {"__class__": {SELF}, "__dict__": {ANYTHING}}.get(attr) or {attr} | self.reading.returned(attr)
        return of - {SELF} | own

    def _outer_name(self, name: str) -> str:
        """Of a variable of the module, or of the function around it; SELF for a class of the object itself."""
        value = self.outer.get(name)
        return SELF if isinstance(value, type) and value in self.reading.kinds else f"{self.module}.{name}"

    def _is_module(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id not in self.own and isinstance(self.outer.get(node.id), ModuleType)

    def _note_stored(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        """Something is assigned to it, or it is deleted."""
        if isinstance(node, ast.Name):
            self.reading.change([] if node.id in self.own else [self._outer_name(node.id)], rebound=True)
        elif isinstance(node, ast.Attribute) and (SELF in self.roots(node.value) or self._is_module(node.value)):
            self.reading.change(self._of_attribute(node.value, node.attr), rebound=True)
        else:
            self.reading.change(self.roots(node.value))

    def _note_read(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        if isinstance(node, ast.Attribute) and (SELF in self.roots(node.value) or sources.is_super(node.value)):
            self.reading.read(node.attr)
        elif isinstance(node, ast.Attribute) and self._is_module(node.value):
            for name in self._of_attribute(node.value, node.attr):
                self._use_outer(name, self.reading.value(name))
        elif isinstance(node, ast.Name) and node.id not in self.own and node.id in self.outer and not self._is_module(node):
            self._use_outer(self._outer_name(node.id), self.outer[node.id])

    def _use_outer(self, name: str, value: Any) -> None:
        if name == SELF:
            return
        self.reading.effects.read.add(name)
        if isinstance(value, type) and sources.is_authors(value):  # its objects are made here
            for method in vars(value).values():
                for function in sources.functions_in(method):
                    self.reading.follow(function, "")
        self.reading.use(name, value)

    def _note_call(self, node: ast.Call) -> None:
        """What a call changes by its name, and what it is given."""
        func, given = node.func, [*node.args, *(one.value for one in node.keywords)]
        called = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if isinstance(func, ast.Attribute) and (
            called in sources.MUTATORS or (called.endswith("_") and not called.endswith("__"))
        ):
            self.reading.change([] if self._is_module(func.value) else self.roots(func.value) - {SELF})
        if called in ("setattr", "delattr", "getattr") and given and SELF in self.roots(given[0]):
            name = str(given[1].value) if len(given) > 1 and isinstance(given[1], ast.Constant) else ANYTHING
            if called == "getattr":
                self.reading.read(name)
            else:
                self.reading.change([name], rebound=True)
        elif called in sources.CHANGE_FIRST and given:
            self.reading.change(self.roots(given[0]))
        self.reading.change(set().union(*(self.roots(one.value) for one in node.keywords if one.arg == "out")))
        passed = set().union(*map(self.roots, given))
        if SELF in passed and called not in sources.HARMLESS:
            if self._is_of_a_base(func):
                self.reading.read(called)
            else:
                self.reading.change([ANYTHING], rebound=True)
                self.reading.effects.read.add(ANYTHING)
        self.reading.passed_on |= passed - {SELF, ARGUMENT}

    def _is_of_a_base(self, func: ast.AST) -> bool:
        """Whether this is `Base.method`, which is given self."""
        base = self.outer.get(func.value.id) if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else None
        return isinstance(base, type) and base in type(self.reading.owner).__mro__


def changes_itself(value: Any, known: dict[int, bool]) -> bool:
    """Whether this is an object of an author's class whose methods change it, or anything else. known: by objects' ids."""
    if isinstance(value, MethodType):
        value = value.__self__
    kinds = [kind for kind in type(value).__mro__ if sources.is_authors(kind)]
    if kinds and id(value) not in known:
        known[id(value)] = False  # until more is known: it may lead to itself
        names = {name for kind in kinds for name in vars(kind)} - BUILDING
        known[id(value)] = bool(Reading(value, kinds, known).of(names).changed)
    return bool(kinds) and known[id(value)]
