"""See in a source how a tokenizer of transformers is told to cut and to fill up what it reads.

It keeps that until it is told otherwise. So what another thread has it read meanwhile is cut in the same way.
"""

from __future__ import annotations

import ast
from collections.abc import Container

HOW = frozenset(("truncation", "max_length", "padding", "stride", "pad_to_multiple_of", "padding_side"))
TOLD = "tokenizer.options"  # in the place of a name that is changed
VARIES = "varies"


def told(call: ast.Call, own: Container[str]) -> str:
    """How a call's options are written, VARIES where a local name is in them, "" where there are none. own: local names."""
    given = [one for one in call.keywords if one.arg is None or one.arg in HOW]
    inner = [node for one in given for node in ast.walk(one.value) if isinstance(node, ast.Name)]
    if any(node.id in own for node in inner):
        return VARIES
    return " ".join(sorted(f"{one.arg}={ast.unparse(one.value)}" for one in given))
