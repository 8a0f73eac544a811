"""Find an author's functions in a handler's classes, their syntax trees, and the names in those that tell of changes."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

NOTED = (ast.Call, ast.Attribute, ast.Subscript, ast.Name, ast.AugAssign)


@functools.cache
def _is_authors_module(name: str) -> bool:
    if name.partition(".")[0] in ("slotwise", *sys.builtin_module_names, *sys.stdlib_module_names):
        return name == "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(Path(file).parts)


def is_authors(thing: Any) -> bool:
    """Whether this is a function, a class or a module, no library's, and not ours."""
    if isinstance(thing, ModuleType):
        return _is_authors_module(thing.__name__)
    try:
        return isinstance(thing, type | FunctionType) and _is_authors_module(thing.__module__ or "")
    except Exception:  # a class may answer with anything
        return False


def functions_in(member: Any) -> Iterator[FunctionType]:
    """The author's functions that a class's member is made of, also those around them and in them."""
    parts: list[Any] = [member]
    if isinstance(member, property):
        parts = [member.fget, member.fset, member.fdel]
    elif isinstance(member, cached_property | partial | partialmethod):
        parts = [member.func]
    elif isinstance(member, staticmethod | classmethod | MethodType):
        parts = [member.__func__]
    for part in parts:
        wraps = hasattr(part, "__wrapped__")  # the function of a library's decorator says that it is the author's
        if isinstance(part, FunctionType) and (not wraps or _is_authors_module(part.__globals__.get("__name__", ""))):
            yield part
        inner = getattr(part, "__wrapped__", None)
        if inner is not None or isinstance(part, partial | partialmethod):
            yield from functions_in(part if inner is None else inner)


def methods_of(kinds: Iterable[type]) -> set[str]:
    """The names of these classes' methods, without those that `dataclass` has written, which have no source."""
    return {name for kind in kinds for name, member in vars(kind).items() if not _is_written(kind, name, member)}


def _is_written(kind: type, name: str, member: Any) -> bool:
    if "__dataclass_fields__" not in vars(kind) or not name.startswith("__"):
        return False
    return {function.__code__.co_filename for function in functions_in(member)} <= {"<string>"}


class FunctionSource:
    """A function's syntax tree, without decorators. Raises what reading and parsing its source raises.

    nodes: what changes or reads something. parents: by child. given, inner: the names of its parameters, and of those in it.
    own: its local names.
    pairs: each target with what is assigned to it, or to a part of it. returned: what it returns.
    """

    def __init__(self, code: CodeType) -> None:
        tree = _tree(code)
        everything = list(ast.walk(tree))
        self.nodes = [node for node in everything if isinstance(node, NOTED)]
        self.given, self.inner = _parameters(tree)
        stored = {node.id for node in self.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        elsewhere = {name for node in everything if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        self.own = (stored | {*self.given, *self.inner}) - elsewhere
        self.pairs = list(_assignments(everything))
        self.parents = {child: node for node in everything for child in ast.iter_child_nodes(node)}
        self.returned = [node.value for node in everything if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]


@functools.cache
def source_of(code: CodeType) -> FunctionSource:
    """The FunctionSource of a function's code."""
    return FunctionSource(code)


def _tree(code: CodeType) -> ast.AST:
    source = inspect.getsource(code)
    if code.co_name == "<lambda>":
        return _lambda(source)
    nodes = ast.walk(ast.parse(f"if True:\n{source}" if source[:1].isspace() else source))
    found = next(node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found.decorator_list = []
    return found


def _lambda(source: str) -> ast.AST:
    """The lambdas that stand in these lines, which may begin and end anywhere."""
    for start in (0, source.index("lambda")):
        for end in range(len(source), start, -1):
            try:
                tree = ast.parse(source[start:end].strip())
            except SyntaxError:
                continue
            return ast.List([node for node in ast.walk(tree) if isinstance(node, ast.Lambda)], ast.Load())
    raise ValueError(source)


def outer_values(function: FunctionType) -> dict[str, Any]:
    """The values of the names that it has from its module and from the functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    values = dict(function.__globals__)
    for name, cell in cells:
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not set yet
            values[name] = None
    return values


def _parameters(tree: ast.AST) -> tuple[list[str], list[str]]:
    """The names of a function's parameters, and of those in it."""
    lists = [node.args for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    names = [
        [one.arg for one in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg) if one is not None]
        for args in lists
    ]
    if isinstance(tree, ast.List):
        return [], [name for given in names for name in given]
    return names[0] if names else [], [name for given in names[1:] for name in given]


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.AST() as value) | ast.NamedExpr(target=target, value=value):
                yield target, value
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield target, value
            case ast.withitem(context_expr=value, optional_vars=ast.AST() as target):
                yield target, value


def names_in(target: ast.AST) -> Iterator[str]:
    """The names that a target is made of, or is a part of."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from names_in(part)
        case ast.Starred(value=part) | ast.Attribute(value=part) | ast.Subscript(value=part):
            yield from names_in(part)


def name_of_call(func: ast.AST) -> str:
    """The last name of what is called; "" where it has none."""
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def is_super(node: ast.AST) -> bool:
    """Whether this is a call of `super`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
