"""Read off one function's source what it changes and reads that outlives a call of it.

What it uses in a way that is not known to keep it as it is, counts as changed: known ways are in uses.py.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

from slotwise.worker.familiar import process_wide, sources, telling_names, tokenizers_told, values
from slotwise.worker.familiar.uses import ANYTHING, ARGUMENT, HOOKS, MADE, METHODS, SELF, Follower, Uses
from slotwise.worker.familiar.values import MISSING


class FunctionReading(Uses):
    """One function's source. known: what its local variables may be, or be a part of."""

    def __init__(self, reading: Follower, function: FunctionType, first: str) -> None:
        self.reading, self.module, self.outer = reading, function.__module__, sources.outer_values(function)
        self.source = source = sources.source_of(function.__code__)
        self.own, given = source.own, source.given
        self.known: dict[str, set[str]] = {name: {ARGUMENT} for name in source.inner}
        if function.__name__ not in (*METHODS, *HOOKS) or first != SELF:  # what those are given is the request's
            self.known |= {name: {ARGUMENT} for name in given}
        if given:
            self.known[given[0]] = {first} if first else set()
        self.defaults = {f"{self.module}.{function.__qualname__}.{one}" for one in self._kept_defaults(function)}
        count = -1
        while count != (count := sum(map(len, self.known.values()))):  # an alias may be used before the line that makes it
            for target, value in source.pairs:
                for name in self.own.intersection(sources.names_in(target)):
                    if SELF not in self.known.get(name, ()) or isinstance(target, ast.Name):
                        self.known.setdefault(name, set()).update(self.roots(value))

    def _kept_defaults(self, function: FunctionType) -> Iterator[str]:
        """The parameters whose defaults are one thing for all calls."""
        defaults, given = function.__defaults__ or (), self.source.given
        for name, value in zip(given[len(given) - len(defaults) :], defaults, strict=False):
            if values.may_change(value):
                self.known.setdefault(name, set()).add(f"{self.module}.{function.__qualname__}.{name}")
                holder = SimpleNamespace(defaults=defaults)
                self.reading.effects.places[id(function), "defaults"] = holder, "defaults"
                yield name

    def note(self) -> None:
        """Add what it does to the reading."""
        self.reading.effects.read |= self.defaults
        for node in self.source.nodes:
            if isinstance(node, ast.Call):
                self._note_call(node)
            elif isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self._note_read(node)
                    if not self.reading.told:
                        self._note_use(node)
                else:
                    self._note_stored(node)
            elif isinstance(node, ast.AugAssign):
                self.reading.change(self.roots(node.target))
        for target, value in self.source.pairs:
            if process_wide.sets(target, value, self.at):
                self.reading.effects.changed.add(process_wide.SETTINGS)
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
            case ast.Call():
                return self._of_call(node)
            case ast.Subscript(value=value):
                return self._but_plain(value)
            case ast.Lambda(body=body):
                return self.roots(body)
            case ast.Starred(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.roots(value)
            case ast.IfExp(body=one, orelse=other):
                return self.roots(one) | self.roots(other)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                return set().union(*map(self.roots, parts))
        return set()

    def _but_plain(self, node: ast.AST) -> set[str]:
        """What a part of this expression is a part of: of nothing, where all in it is fixed."""
        return {name for name in self.roots(node) if name == SELF or self.kind(node, name) not in ("plain", "fixed")}

    def _of_call(self, node: ast.Call) -> set[str]:
        """What a call gives, or something in it, where that is not new."""
        func, given = node.func, set().union(*map(self.roots, node.args))
        if isinstance(func, ast.Name):
            function = self.outer.get(func.id)
            if func.id == "getattr" and given & {SELF}:
                return {_text(node.args[1:2]) or ANYTHING}
            if func.id in ("type", "cast"):
                return given
            if func.id == "vars" and SELF in given:
                return {ANYTHING, MADE}
            if func.id in self.own:  # a lambda, say
                return self.known.get(func.id, set()) - {SELF}
            if func.id not in self.outer and not hasattr(builtins, func.id):  # a function within this one
                return self.returned() - {SELF}
            if isinstance(function, FunctionType) and sources.is_authors(function):
                found = self.reading.returned([function], ARGUMENT)
                return (found | given if ARGUMENT in found else found) - {SELF, ARGUMENT}
            if isinstance(function, type) and sources.is_authors(function) and _gives_what_was_there(function):
                return {self._outer_name(func.id)}
            if type(function).__name__ == values.CACHED:
                return {self._outer_name(func.id)}
            if func.id in telling_names.SHOW_PARTS:
                several = len(node.args) > 1 and func.id in ("max", "min")
                return (given if several else set().union(*map(self._but_plain, node.args))) - {SELF}
        elif isinstance(func, ast.Attribute):
            of = self.roots(func.value)
            if SELF in of or sources.is_super(func.value):
                found = self.reading.returned(self.reading.methods(func.attr), self.reading.first_of(func.attr))
                return (found | given if ARGUMENT in found else found) - {SELF, ARGUMENT}
            if not self._is_module(func.value):
                own = {name for name in of if self.kind(func.value, name) == "own"}
                given_out = {name for name in own if self.reading.gives_of_itself(name, func.attr)}
                if func.attr == "copy":  # whose parts are the same
                    return given_out | {name for name in of - own if self.kind(func.value, name) in ("nested", "other")}
                return given_out | (self._but_plain(func.value) - own if func.attr in telling_names.GIVE_PARTS else set())
        return set()

    def _of_attribute(self, value: ast.AST, attr: str) -> set[str]:
        of = self.roots(value)
        if self._is_module(value):
            module = self.outer[value.id]  # type: ignore[attr-defined]
            kept = getattr(module, attr, MISSING)
            return (
                {f"{module.__name__}.{attr}"}
                if sources.is_authors(module) or (kept is not MISSING and _is_data(kept))
                else set()
            )
        if SELF not in of:
            return of
        own = {"__class__": {SELF}, "__dict__": {ANYTHING, MADE}}.get(attr)
        if own is None:
            own = {attr} | self.reading.returned(self.reading.methods(attr), SELF) - {ARGUMENT, SELF}
        return of - {SELF} | own

    def _outer_name(self, name: str) -> str:
        """Of a variable of the module, or of the function around it; SELF for a class of the object itself."""
        value = self.outer.get(name)
        return SELF if isinstance(value, type) and value in self.reading.kinds else f"{self.module}.{name}"

    def _note_stored(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        """Something is assigned to it, or it is deleted."""
        if isinstance(node, ast.Name):
            self.reading.change([] if node.id in self.own else [self._outer_name(node.id)], rebound=True)
        elif isinstance(node, ast.Attribute) and (SELF in self.roots(node.value) or self._is_module(node.value)):
            self.reading.change(self._of_attribute(node.value, node.attr), rebound=True)
            for function in self.reading.methods(node.attr):  # a property's setter
                self.reading.follow(function, SELF)
        else:
            self.reading.change(self.roots(node.value), rebound=True)

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
            for member in [vars(value)[one] for one in sources.methods_of([value])]:
                first = name if isinstance(member, classmethod) else ARGUMENT if isinstance(member, staticmethod) else ""
                for function in filter(sources.is_authors, sources.functions_in(member)):
                    self.reading.follow(function, name if function.__name__ == "__new__" else first)
        self.reading.use(name, value)

    def _note_use(self, node: ast.Attribute | ast.Subscript | ast.Name) -> None:
        """What is used in no way that keeps it counts as changed."""
        around = self.source.parents.get(node)
        if isinstance(around, ast.Subscript) and around.value is node:
            return  # that is looked at itself
        called = (
            isinstance(around, ast.Attribute)
            and isinstance(outer := self.source.parents.get(around), ast.Call)
            and outer.func is around
        )
        if isinstance(around, ast.Attribute) and not called:
            return
        of_another = isinstance(node, ast.Attribute) and SELF not in self.roots(node.value)
        if of_another and isinstance(around, ast.Call) and around.func is node:
            return  # what that is a method of was looked at
        names = self.roots(node) - {SELF}
        self.reading.change([name for name in names if not self.keeps(node, name, called)], perhaps=True)

    def _note_call(self, node: ast.Call) -> None:
        """What a call changes by its name, and what it is given."""
        func, given = node.func, [*node.args, *(one.value for one in node.keywords)]
        called, unwanted = sources.name_of_call(func), isinstance(self.source.parents.get(node), ast.Expr)
        if isinstance(func, ast.Attribute) and telling_names.says_that_it_changes(called):
            of = set() if self._is_module(func.value) else self.roots(func.value)
            if called.startswith(telling_names.SAYING):  # what a method of an author's object does is read
                of = {name for name in of if name == SELF or self.kind(func.value, name) != "own"}
            if SELF in of and any(True for _ in self.reading.methods(called)):
                of = of - {SELF}
            self.reading.change(of, rebound=True)
        elif isinstance(func, ast.Attribute) and unwanted and called not in telling_names.STILL:  # it is there to change that
            self.reading.change(one for one in self.roots(func.value) - {SELF} if self.kind(func.value, one) == "other")
        if shared := process_wide.together(node, called, self.at, self._given):
            self.reading.effects.changed.add(shared)
        if how := tokenizers_told.told(node, {name for name in self.own if SELF not in self.known.get(name, ())}):
            self._note_options(func, how)
        if called in ("globals", "locals", "vars") and (called != "vars" or not given):
            self.reading.change([ANYTHING], rebound=True)
        if called in ("setattr", "delattr", "getattr") and given and SELF in self.roots(given[0]):
            name = _text(given[1:2]) or ANYTHING
            if called == "getattr":
                self.reading.read(name)
            if called != "getattr" or name == ANYTHING:
                self.reading.change([name, MADE] if called != "getattr" and name == ANYTHING else [name], rebound=True)
        elif called in telling_names.CHANGE_FIRST and given:
            self.reading.change(self.roots(given[0]))
        filled = [one.value for one in node.keywords if one.arg == "out"]
        filled += node.args[2:3] if called in telling_names.FILL_THIRD else []
        self.reading.change(set().union(*map(self.roots, filled)))
        passed = set().union(*map(self.roots, given))
        if SELF in passed and called not in telling_names.HARMLESS:
            first = self.outer.get(func.id) if isinstance(func, ast.Name) and func.id not in self.own else None
            if self._is_of_a_base(func):
                self.reading.read(called)
            elif isinstance(first, FunctionType) and sources.is_authors(first) and self._is_first(given):
                self.reading.follow(first, SELF)
            else:
                self.reading.change([ANYTHING], rebound=True)
                self.reading.effects.read.add(ANYTHING)
        if self._is_followed(func):
            self.reading.passed_on |= passed - {SELF, ARGUMENT}

    def _note_options(self, func: ast.AST, how: str) -> None:
        """A tokenizer is told how to cut a text: two ways of it are in each other's way."""
        if any(map(values.is_trusted, map(self.reading.value, self.roots(func)))):
            self.reading.told_how.add(how)
            if tokenizers_told.VARIES in self.reading.told_how or len(self.reading.told_how) > 1:
                self.reading.effects.changed.add(tokenizers_told.TOLD)

    def _is_followed(self, func: ast.AST) -> bool:
        """Whether this is a function of the author's, or may be."""
        if isinstance(func, ast.Attribute):
            return SELF in self.roots(func.value) or sources.is_super(func.value)
        if not isinstance(func, ast.Name):
            return True
        return (
            sources.is_authors(self.outer.get(func.id))
            or func.id in self.own
            or (func.id not in self.outer and not hasattr(builtins, func.id))
        )

    def _is_first(self, given: Sequence[ast.AST]) -> bool:
        """Whether the object itself is given at first, and nowhere else."""
        here = [SELF in self.roots(one) for one in given]
        return here[0] and not any(here[1:])

    def _given(self, name: str) -> list[ast.AST]:
        """What a local name is set to; None where that is not seen."""
        found = [value for target, value in self.source.pairs if name in sources.names_in(target)]
        return found or ([ast.Constant(None)] if name in self.own else [])

    def _is_of_a_base(self, func: ast.AST) -> bool:
        """Whether this is `Base.method`, which is given self."""
        base = self.outer.get(func.value.id) if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else None
        return isinstance(base, type) and base in type(self.reading.owner).__mro__


def _is_data(kept: Any) -> bool:
    """Whether this, of a library's module, is neither a function nor a class nor a module."""
    return values.may_change(kept) and not callable(kept)


def _gives_what_was_there(kind: type) -> bool:
    """Whether a call of an author's class may give what it has given before."""
    return "__new__" in vars(kind) or sources.is_authors(type(kind))


def _text(nodes: Sequence[ast.AST]) -> str:
    """The name that stands there; "" where it is made."""
    return next((str(one.value) for one in nodes if isinstance(one, ast.Constant)), "")
