"""Load a torch.export program (.pt2), after a look at what torch would run of it.

`torch.export.load` unpickles weights that say so, and sample inputs that hold more than tensors. It evaluates sizes and guards
as Python, writes names of the graph into code, and loads compiled libraries that the file brings. A network's graph and weights
need none of that, so a file that has any of it is refused.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

RECORDS = re.compile(
    r"models/model\.json|data/(weights|constants)/(model_\1_config\.json|model\.pt|(weight|tensor)_\d+)"
    r"|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|version|\.(data/)?[a-z_]+|extra/.*"
)
NAME = re.compile(r"[\w.:+#-]*")  # nothing that could end a name where torch writes it into code
FREE = {"metadata", "as_string", "as_strings", "out_spec"}  # text that stays text
FUNCTIONS = re.compile(r"[A-Z]\w*|abs|ceiling|cast_symbool_to_symint_guardless|exp|floor|log|max|min|sign|sqrt")  # of sympy
ATTRIBUTES = {"size", "stride", "storage_offset", "shape", "dtype", "isnan", "inf"}
PLAIN = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.keyword, ast.Tuple, ast.BinOp),
    *(ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def load(path: Path) -> Any:
    """The program's module, in the mode in which it was exported. Raises ValueError for a file that would run its own code."""
    if why := fault(path):
        raise ValueError(f"{path.name} {why}: export it again with torch.export.save, from tensors alone")
    return torch.export.load(str(path)).module()


def fault(path: Path) -> str:
    """What in the file would run code when torch loads it; "" where nothing would."""
    with zipfile.ZipFile(path) as source:
        if "version" in source.namelist():  # torch takes the form before 2.8 where it cannot read the present one
            return "has the form of an earlier torch, which is unpickled"
    reader = torch._C.PyTorchFileReader(str(path))
    records: list[str] = reader.get_all_records()
    for record in records:
        if not RECORDS.fullmatch(record):
            return f"holds {record!a:.100}, which torch unpickles or runs"
        if record.endswith(".pt") and (why := _unpickled(reader.get_record(record))):
            return f"holds more than tensors in {record} ({why})"
        if record.endswith(".json") and (why := _evaluated(json.loads(reader.get_record(record)))):
            return f"says {why!a:.100} in {record}, which torch evaluates"
    twice = [name for name, count in Counter(record.casefold() for record in records).items() if count > 1]
    return f"holds {twice[0]!a:.100} twice" if twice else ""


def _unpickled(data: bytes) -> str:
    """Why the bytes are more than tensors; "" where torch reads them without running anything of theirs."""
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        return str(error).partition("\n")[0][:100] or type(error).__name__
    return ""


def _evaluated(value: Any) -> str:
    """The first text of a record that could be code where torch makes code of it; "" where there is none."""
    return next(_suspicious(value, ""), "")


def _suspicious(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not NAME.fullmatch(name) or (name == "use_pickle" and inner):
                yield name
            if name not in FREE:
                yield from _suspicious(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _suspicious(inner, key)
    elif isinstance(value, str):
        if key in ("expr_str", "guards_code"):
            fits = _is_plain(value)
        elif value[:1] in ("[", "{"):  # JSON within the JSON: words in it become arguments of a function
            fits = not _evaluated(json.loads(value))
        else:
            fits = bool(NAME.fullmatch(value))
        if not fits:
            yield value


def _is_plain(text: str) -> bool:
    """Whether an expression only calculates with numbers and sizes: no name of Python's own, no text but names."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in nodes:
        if not isinstance(node, PLAIN):
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and not re.fullmatch(r"\w+", str(node.value)):
            return False
        if isinstance(node, ast.Attribute) and node.attr not in ATTRIBUTES:
            return False
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not FUNCTIONS.fullmatch(node.func.id):
            return False
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
            return False
    return True
