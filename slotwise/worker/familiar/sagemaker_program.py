"""Which file of a SageMaker model's code/ has its functions. Nobody's functions are left out without a word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FUNCTIONS = ("model_fn", "transform_fn", "input_fn", "predict_fn", "output_fn", "pre_model_fn", "model_warmup_fn")
USUAL = "inference.py"


def program_of(code: Path, named: str = "") -> str:
    """The file in `code` to import: the one that is named, else inference.py; "" where there are no functions.

    Raises ValueError where the named one is not there, and where only files of other names have functions.
    """
    if named:
        file = f"{named.removesuffix('.py')}.py"
        if not (code / file).is_file():
            raise ValueError(f"code/{file} is named as the program, but is not there")
        return file
    having = [file.name for file in sorted(code.glob("*.py")) if defined(file) & {*FUNCTIONS}]
    usual = code / USUAL
    if usual.is_file() and (USUAL in having or not having or "*" in defined(usual)):
        return USUAL
    if having:
        raise ValueError(f"code/{having[0]} has functions, but nothing names it: [options] program = {having[0]!r}")
    return ""


def defined(file: Path) -> set[str]:
    """The names that a module defines or imports, as far as its text tells."""
    return set(_names(parsed(file)))


def parsed(file: Path) -> ast.Module:
    """A module's tree; an empty one where it cannot be read."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child.name
        elif isinstance(child, ast.Assign):
            yield from (target.id for target in child.targets if isinstance(target, ast.Name))
        elif isinstance(child, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in child.names)
        elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler):
            yield from _names(child)
