"""Write docs/api.md from the docstrings of what `slotwise.worker` and `slotwise.client` export.

    python scripts/api.py             write the page
    python scripts/api.py --check     exit with 1 where the page is not what would be written

The source is read, not imported, so the page is the same wherever it is made.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
INTRODUCTION = """\
# API

The public names of `slotwise.worker` (for handlers) and `slotwise.client` (for programs that talk to a server). Everything else
may change without notice. `slotwise.archive.load`, which answers without a server, is described in
[a handler of your own](handlers.md#in-a-notebook), and so are `slotwise.archive.library.scikit_learn.export` and
`slotwise.archive.library.expected_answers.write_expected` in [tables](tabular.md#as-the-library-answers).

This page is written from the docstrings by `python scripts/api.py`. Correct it there.
"""
PACKAGES = ("slotwise.worker", "slotwise.client")
Function = ast.FunctionDef | ast.AsyncFunctionDef
LONGEST_LINE = 100  # of a signature
ITEM = re.compile(r"^(\w+(?:, \w+)*):")


def main() -> int:
    """Write or check; the exit code."""
    from written_pages import write_or_check

    pages = {PAGE: page()}
    return write_or_check(pages, str(__doc__), "python scripts/api.py")


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(package(name) for name in PACKAGES)])


def package(name: str) -> str:
    """One package: its docstring, its classes and functions, then its errors as a table."""
    folder = ROOT / name.replace(".", "/")
    tree = ast.parse((folder / "__init__.py").read_text("utf-8"))
    nodes = list(exported(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    errors = [node for node in classes if "SlotError" in [ast.unparse(base) for base in node.bases]]
    parts = [f"## {name}\n", paragraphs(tree)]
    parts += [described(node) for node in classes if node not in errors]
    parts += [called(node) for node in nodes if isinstance(node, Function)]
    if errors:
        parts.append("### The errors\n\nEach is a `SlotError` and takes one argument, the message.\n")
        rows = [f"| `{node.name}` | {code(node)} | {ast.get_docstring(node)} |" for node in errors]
        parts.append(
            "\n".join(["| error | status | |", "| --- | --- | --- |", *sorted(rows, key=lambda row: row.split("|")[2])])
        )
    return "\n".join(parts).rstrip() + "\n"


def exported(tree: ast.Module) -> Iterator[ast.ClassDef | Function]:
    """The class or function of every name in a package's `__all__`, in that order."""
    modules = {alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            for name in ast.literal_eval(node.value):
                source = ROOT / f"{str(modules[name]).replace('.', '/')}.py"
                module = ast.parse(source.read_text("utf-8"))
                yield next(part for part in module.body if isinstance(part, ast.ClassDef | Function) and part.name == name)


def called(node: Function) -> str:
    """One function: how it is called, and its docstring."""
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return "\n".join([f"### {node.name}\n", shown((node.name, parameters(node), returned)), paragraphs(node, names_of(node))])


def described(node: ast.ClassDef) -> str:
    """One class: how it is made, its docstring, and its public methods and properties."""
    parts = [f"### {node.name}\n", shown((node.name, arguments(node), "")), paragraphs(node, names_of(node))]
    for member in node.body:
        if isinstance(member, Function) and not member.name.startswith("_"):
            parts += [shown(signature(member, node.name)), paragraphs(member, names_of(member))]
    return "\n".join(parts)


def arguments(node: ast.ClassDef) -> list[str]:
    """What a class takes: the arguments of `__init__`, else a dataclass's fields."""
    for member in node.body:
        if isinstance(member, Function) and member.name == "__init__":
            return parameters(member)
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return []
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    fields = [member for member in fields if "init=False" not in ast.unparse(member)]
    return [parameter(ast.unparse(member.target), member.annotation, member.value) for member in fields]


def parameters(member: Function) -> list[str]:
    """A method's or function's parameters as in its source, without `self`."""
    positional = member.args.posonlyargs + member.args.args
    defaults = [None] * (len(positional) - len(member.args.defaults)) + member.args.defaults
    plain = [parameter(arg.arg, arg.annotation, default) for arg, default in zip(positional, defaults, strict=True)]
    plain = plain[1:] if positional and positional[0].arg in ("self", "cls") else plain
    keywords = zip(member.args.kwonlyargs, member.args.kw_defaults, strict=True)
    named = [parameter(arg.arg, arg.annotation, default) for arg, default in keywords]
    rest = member.args.kwarg
    return [*plain, *(["*"] if named else []), *named, *([parameter(f"**{rest.arg}", rest.annotation, None)] if rest else [])]


def parameter(name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
    """One parameter; a default that says little on a page is left open."""
    declared = f"{name}: {ast.unparse(annotation)}" if annotation else name
    if default is None:
        return declared
    value = ast.unparse(default)
    return f"{declared} = {'...' if isinstance(default, ast.Lambda) or value.startswith('field(') else value}"


def signature(member: Function, owner: str) -> tuple[str, list[str] | None, str]:
    """A method's name, parameters (None for a property) and returned type; of a classmethod the name says the class."""
    decorators = " ".join(ast.unparse(decorator) for decorator in member.decorator_list)
    name = f"{owner}.{member.name}" if "classmethod" in decorators else member.name
    returned = f" -> {ast.unparse(member.returns)}" if member.returns else ""
    return name, None if "property" in decorators else parameters(member), returned


def shown(parts: tuple[str, list[str] | None, str]) -> str:
    """A signature on one line where it is short, else with a line for every parameter."""
    name, taken, returned = parts
    line = name + returned if taken is None else f"{name}({', '.join(taken)}){returned}"
    if len(line) <= LONGEST_LINE or not taken:
        return f"**`{line}`**\n"
    rows = "".join(f"    {one},\n" for one in taken)
    return f"```python\n{name}(\n{rows}){returned}\n```\n"


def names_of(node: ast.ClassDef | Function) -> set[str]:
    """The names that a docstring may explain: of a method its parameters, of a class its fields and attributes."""
    if isinstance(node, Function):
        return {arg.arg for arg in [*node.args.args, *node.args.kwonlyargs]}
    return {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)} | {
        part.attr if isinstance(part, ast.Attribute) else part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    }


def code(node: ast.ClassDef) -> str:
    """An error's HTTP status."""
    values = [ast.unparse(part.value) for part in node.body if isinstance(part, ast.Assign)]
    return values[0] if values else ""


def paragraphs(node: ast.Module | ast.ClassDef | Function, names: Collection[str] = ()) -> str:
    """A docstring as Markdown: `name: meaning.` becomes an item of a list; its indented lines are code already."""
    written = []
    for block in (ast.get_docstring(node) or "").split("\n\n"):
        indented = block.startswith("    ")
        written.append(block if indented or not names else listed(block, names))
    return "\n\n".join(written) + "\n"


def listed(block: str, names: Collection[str]) -> str:
    """One paragraph, its explanations of names as a list, and what it raises behind them."""
    one = "|".join(sorted(names, key=len, reverse=True))
    starts = re.compile(rf"(?:^|(?<=[.] )|(?<=[.]\n))(?=(?:{one})(?:, (?:{one}))*:\s)")
    first, *items = starts.split(block)
    if not items:
        return block
    last, raises, rest = items[-1].partition("Raises ")
    items[-1] = last
    lines = [f"- {ITEM.sub(marked, ' '.join(item.split()), count=1)}" for item in items]
    return "\n\n".join(part for part in (first.strip(), "\n".join(lines), raises + rest) if part)


def marked(names: re.Match[str]) -> str:
    """The names before a colon as code."""
    return ", ".join(f"`{name}`" for name in names[1].split(", ")) + ":"


if __name__ == "__main__":
    sys.exit(main())
