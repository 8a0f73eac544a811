"""Write down what handlers may rely on: the public names of `slotwise.worker`, and what the given handlers of 0.2.0 import.

    python -m tests.worker.public_api > tests/worker/public_api.txt       once a release; test_public_api.py compares

A line a name: a function with its signature, a class with what it is made from, its methods, properties and plain attributes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import slotwise.worker

# Of these a handler meets no more; the rest is the pipeline's own.
MET = {"Batch": {"answers", "requests", "n", "total_ms", "decode_ms", "inference_ms"}, "Pipeline": {"start", "answer", "run"}}
HANDLERS = sorted((Path(__file__).parents[1] / "fixtures" / "handlers-0.2.0").glob("*.py"))


def lines() -> list[str]:
    """The whole list."""
    found = [line for name in slotwise.worker.__all__ for line in described(f"slotwise.worker.{name}")]
    return sorted({*found, *(line for name in imported() for line in described(name))})


def described(path: str) -> Iterator[str]:
    """The lines of one name of a module. Of a base class that is ours its own line tells."""
    module, _, name = path.rpartition(".")
    value: Any = getattr(importlib.import_module(module), name)
    if not inspect.isclass(value):
        yield f"{path}{signature(value)}" if callable(value) else f"{path} = {value!r}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    made = "(...)" if name in MET else signature(value)
    yield f"class {path}{made}" + (f" is a {bases}" if bases else "")
    for attribute in sorted({**vars(value), **inspect.get_annotations(value)}):
        if not attribute.startswith("_") and attribute in MET.get(name, {attribute}):
            yield f"{path}.{member(value, attribute)}"
    if issubclass(value, Exception):
        yield from (f"{path}.{attribute} of an instance" for attribute in vars(value("why")))


def member(kind: type, name: str) -> str:
    """One attribute of a class."""
    value = inspect.getattr_static(kind, name, inspect.Parameter.empty)
    if isinstance(value, classmethod | staticmethod):
        return f"{name}{signature(getattr(kind, name))} of the class"
    if inspect.isfunction(value):
        return f"{name}{signature(value)}"
    if value is inspect.Parameter.empty or hasattr(value, "__get__"):
        return f"{name}: an attribute"
    return f"{name} = {value!r}"


def signature(value: Any) -> str:
    """How it is called: names and defaults, without types. A default that is no plain value is shown as `...`."""
    try:
        whole = inspect.signature(value)
    except ValueError:
        return "(...)"
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in whole.parameters.values()]
    plain = [one if is_plain(one.default) else one.replace(default=...) for one in plain]
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


def is_plain(default: Any) -> bool:
    """Whether a default says the same everywhere."""
    return default is inspect.Parameter.empty or default is None or isinstance(default, bool | int | float | str | tuple)


def imported() -> Iterator[str]:
    """Whatever the given handlers of 0.2.0 import of the worker; of a module what they use of it."""
    for file in HANDLERS:
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("slotwise.worker"):
                for alias in node.names:
                    path = f"{node.module}.{alias.name}"
                    yield from used(tree, alias.asname or alias.name, path) if is_module(path) else [path]


def is_module(path: str) -> bool:
    """Whether a path is a module's."""
    try:
        importlib.import_module(path)
    except ModuleNotFoundError:
        return False
    return True


def used(tree: ast.Module, name: str, path: str) -> Iterator[str]:
    """The attributes of a module that a handler uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            yield f"{path}.{node.attr}"


if __name__ == "__main__":
    print("\n".join(lines()))
