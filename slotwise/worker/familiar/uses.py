"""Tell in which ways a function may use what outlives its call without changing it."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Protocol

from slotwise.worker.familiar import sources, telling_names, values
from slotwise.worker.familiar.values import MISSING

METHODS = ("preprocess", "inference", "postprocess")  # in the order in which a request goes through them
FIRST, LAST = ("cost", "read", "decode"), ("encode", "response_headers", "respond")
HOOKS = (*FIRST, "groups", "collate", "predict", *LAST)  # of a BatchHandler, in this order
SELF, ANYTHING, ARGUMENT = "self", "everything", "an argument"  # the handler itself; all it has; what a function was given
MADE = "a_name_that_is_made"  # in the place of an attribute that setattr, vars or __dict__ set


@dataclass
class Effects:
    """What a method changes and reads, by name: an attribute's, a variable's as "module.NAME", or ANYTHING.

    places: what is changed by its holder, which may be another object of the author's, and its name there.
    """

    changed: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    places: dict[tuple[int, str], tuple[Any, str]] = field(default_factory=dict)


class Follower(Protocol):
    """Takes what a function changes and reads (handed_on.py). owner, kinds: the object whose method it is, and its classes.

    told: only what the source says is changed counts. told_how: in which ways tokenizers are told to cut texts.
    """

    told: bool
    owner: Any
    kinds: Sequence[type]
    effects: Effects
    passed_on: set[str]
    told_how: set[str]

    def change(self, names: Iterable[str], *, rebound: bool = False, perhaps: bool = False) -> None:
        """These are changed."""

    def read(self, name: str) -> None:
        """An attribute is read."""

    def use(self, name: str, value: Any) -> None:
        """What is kept under a name is used."""

    def value(self, name: str) -> Any:
        """What is there now."""

    def methods(self, name: str) -> Iterator[FunctionType]:
        """The object's methods of this name."""

    def gives_of_itself(self, name: str, method: str) -> bool:
        """Whether a method of the object that has this name may give a part of it."""

    def first_of(self, name: str) -> str:
        """What the first parameter of methods is."""

    def returned(self, functions: Iterable[FunctionType], first: str) -> set[str]:
        """What functions return."""

    def follow(self, function: FunctionType, first: str) -> None:
        """A function is called, or may be."""


class Uses(ABC):
    """What is around the names in a function's source. own: its local names. outer: the values of others."""

    reading: Follower
    source: sources.FunctionSource
    module: str
    own: set[str]
    outer: dict[str, Any]

    @abstractmethod
    def roots(self, node: ast.AST | None) -> set[str]:
        """What an expression is, or is a part of."""

    def kind(self, node: ast.AST, name: str) -> values.Kind:
        """What may happen to what stands there, which is, or is a part of, what has this name."""
        value = self.at(node)
        if value is MISSING and name not in (ANYTHING, ARGUMENT):
            value = self.reading.value(name)
            if value is MISSING and name.startswith(f"{self.module}."):
                value = self.outer.get(name.rpartition(".")[2], MISSING)
        return "other" if value is MISSING else values.kind_of(value)

    def at(self, node: ast.AST) -> Any:
        """What stands there now, where that is seen: an attribute, or one of an author's object that is one; else MISSING."""
        match node:
            case ast.Name(id=name) if name not in self.own and name not in self.outer:
                return MISSING
            case ast.Name(id=name) if name not in self.own:
                return self.outer[name]
            case ast.Attribute(value=value, attr=attr) if SELF in self.roots(value):
                return self.reading.value(attr)
            case ast.Attribute(value=value, attr=attr):
                holder = self.at(value)
                if values.is_trusted(holder):  # a tokenizer's pad_token_id, say, is of its class
                    with suppress(Exception):
                        return getattr(holder, attr)
                return values.attributes(holder).get(attr, MISSING) if sources.is_authors(type(holder)) else MISSING
        return MISSING

    def _is_module(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id not in self.own and isinstance(self.outer.get(node.id), ModuleType)

    def keeps(self, node: ast.AST, name: str, called: bool) -> bool:
        """Whether what has this name stays as it is where the node is used. called: by one of its methods."""
        kind, around = self.kind(node, name), self.source.parents.get(node)
        if kind in ("fixed", "own"):
            return True
        if called:
            assert isinstance(around, ast.Attribute)
            method = around.attr
            keeping = {
                "plain": telling_names.READ,
                "nested": telling_names.READ,
                "numbers": telling_names.COUNT | telling_names.GIVE_PARTS,
            }
            return method in keeping.get(kind, ()) or (
                kind == "trusted" and method not in telling_names.MUTATORS and not method.startswith(telling_names.SETTING)
            )
        while isinstance(around, ast.Tuple | ast.List | ast.Starred | ast.BoolOp | ast.NamedExpr | ast.IfExp):
            if isinstance(around, ast.IfExp) and around.test is node:
                return True
            node, around = around, self.source.parents.get(around)
        match around:
            case ast.Call(func=func) if func is node:
                return kind == "trusted"
            case ast.Dict():  # {**it}
                return kind == "plain"
            case ast.Call() | ast.keyword():
                return self._keeps_argument(around if isinstance(around, ast.Call) else self.source.parents[around], kind)
            case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.Expr() | ast.Yield() | ast.YieldFrom() | ast.Lambda():
                return True  # it is known what that is then
            case ast.If() | ast.While() | ast.Assert() | ast.UnaryOp():
                return True
            case ast.Compare(ops=ops):
                return kind in ("plain", "numbers", "nested") or all(isinstance(one, ast.Is | ast.IsNot) for one in ops)
            case ast.For() | ast.comprehension():
                return kind != "other"
            case ast.BinOp() | ast.Subscript():
                return kind in ("plain", "numbers")
            case ast.FormattedValue():
                return kind in ("plain", "nested", "numbers", "trusted")
            case ast.withitem():
                return kind == "trusted"
        return False

    def _keeps_argument(self, call: ast.AST, kind: values.Kind) -> bool:
        """Whether a call leaves as it is what it is given."""
        assert isinstance(call, ast.Call)
        func = call.func
        name = sources.name_of_call(func)
        if isinstance(func, ast.Name) and name not in self.own:
            function = self.outer.get(name)
            if isinstance(function, FunctionType) and sources.is_authors(function):
                return True  # it is followed
            if isinstance(function, type) and sources.is_authors(function):
                return False
        if isinstance(func, ast.Attribute) and (SELF in self.roots(func.value) or sources.is_super(func.value)):
            return any(True for _ in self.reading.methods(name))
        if isinstance(func, ast.Name) and (
            name in telling_names.COPY or name in telling_names.SHOW_PARTS or name in ("type", "cast")
        ):
            return True
        if name in telling_names.CHANGE_FIRST or name in telling_names.START:
            return False
        if name in telling_names.LOG:
            return True
        return kind == "plain" or name == "dumps" or (kind == "numbers" and name in telling_names.NUMBERS)
