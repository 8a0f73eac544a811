"""docs/api.md is what the docstrings say, and the docstrings of public names say enough."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slotwise.client
import slotwise.worker

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")


def test_the_page_is_what_the_docstrings_say() -> None:
    done = subprocess.run([sys.executable, "scripts/api.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [slotwise.worker, slotwise.client])
def test_every_public_name_is_on_the_page(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [name for name in names if f"### {name}\n" not in PAGE and f"| `{name}` |" not in PAGE] == []


def public(package: object) -> Iterator[tuple[str, str | None]]:
    """Every public class, function, method and property of a package with its docstring."""
    for name in package.__all__:  # type: ignore[attr-defined]
        kind = getattr(package, name)
        source = ast.parse(Path(str(sys.modules[kind.__module__].__file__)).read_text("utf-8"))
        node = next(part for part in source.body if isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name == name)
        yield name, ast.get_docstring(node)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield f"{name}.{member.name}", ast.get_docstring(member)


@pytest.mark.parametrize("package", [slotwise.worker, slotwise.client])
def test_every_public_name_says_what_it_does(package: object) -> None:
    own = ("Headers.get",)  # Mapping's own methods need no words, but this one has some
    undocumented = [name for name, docstring in public(package) if not docstring and name not in own]
    assert undocumented == []
