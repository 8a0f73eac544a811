"""Read off one function's source what it changes and reads that outlives a call of it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Protocol

from slotwise.worker.familiar import sources

METHODS = ("preprocess", "inference", "postprocess")  # in the order in which a request goes through them
SELF, ANYTHING, ARGUMENT = "self", "everything", "an argument"  # the handler itself; all it has; what a function was given


@dataclass
class Effects:
    """What a method changes and reads, by name: an attribute's, a variable's as "module.NAME", or ANYTHING.

    places: what is changed by its holder, which may be another object of the author's, and its name there.
    """

    changed: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    places: dict[tuple[int, str], tuple[Any, str]] = field(default_factory=dict)


class Follower(Protocol):
    """Takes what a function changes and reads (handed_on.py). owner, kinds: the object whose method it is, and its classes."""

    owner: Any
    kinds: Sequence[type]
    effects: Effects
    passed_on: set[str]

    def change(self, names: Iterable[str], *, rebound: bool = False) -> None:
        """These are changed."""

    def read(self, name: str) -> None:
        """An attribute is read."""

    def use(self, name: str, value: Any) -> None:
        """What is kept under a name is used."""

    def value(self, name: str) -> Any:
        """What is there now."""

    def returned(self, name: str) -> set[str]:
        """What the methods of a name return."""

    def follow(self, function: FunctionType, first: str) -> None:
        """A function is called, or may be."""


class FunctionReading:
    """One function's source. known: what its local variables may be, or be a part of."""

    def __init__(self, reading: Follower, function: FunctionType, first: str) -> None:
        self.reading, self.module, self.outer = reading, function.__module__, sources.outer_values(function)
        self.source = source = sources.source_of(function.__code__)
        self.own, given = source.own, source.given
        self.known: dict[str, set[str]] = {name: {ARGUMENT} for name in source.inner}
        if function.__name__ not in METHODS or first != SELF:  # what those are given is the request's
            self.known |= {name: {ARGUMENT} for name in given}
        if given:
            self.known[given[0]] = {first} if first else set()
        count = -1
        while count != (count := sum(map(len, self.known.values()))):  # an alias may be used before the line that makes it
            for target, value in source.pairs:
                for name in self.own.intersection(sources.names_in(target)):
                    if SELF not in self.known.get(name, ()) or isinstance(target, ast.Name):
                        self.known.setdefault(name, set()).update(self.roots(value))

    def note(self) -> None:
        """Add what it does to the reading."""
        for node in self.source.nodes:
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
        for target, value in self.source.pairs:
            if isinstance(target, ast.Attribute | ast.Subscript) and self.roots(target) - {ARGUMENT}:  # two names for one thing
                self.reading.change(self.roots(value) - {SELF})

    def returned(self) -> set[str]:
        """What it returns, or something in it."""
        return set().union(*map(self.roots, self.source.returned))

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
