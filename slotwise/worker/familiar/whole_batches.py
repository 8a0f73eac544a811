"""Take a batch as other tools' handlers have it apart into rows, and put rows together again into the same kind of batch.

A batch is a tensor or an array [b, ...], a dict or a tuple of such (several inputs or outputs of a network), or a list of b
things. A row is a plain pair, which can be owned and looked at as anything else (ownership.py, outputs.py): which kind of
batch it is of, and the row without the batch's axis; of several parts a tuple of theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotwise.worker.padding import stacked
from slotwise.worker.slot_errors import ModelFault

LooseRow = tuple[str | tuple[Any, ...], Any]  # "array", "tensor", "list", or for several parts ("parts", ...), ("named", ...)


def form(row: LooseRow) -> object:
    """What is equal for rows that can be in one batch: kind, types and shapes."""
    way, value = row
    return way, _form(value) if way != "list" else None


def rows_of_batch(batch: Any) -> list[LooseRow]:
    """The rows of a batch. Raises ModelFault where it is none."""
    if isinstance(batch, Mapping):
        parts = {name: part for name, part in batch.items() if part is not None}
        return _rows_of_parts(("named", *parts), list(parts.values()))
    if isinstance(batch, tuple) and batch and all(_is_array(part) for part in batch):
        return _rows_of_parts(("parts", *range(len(batch))), batch)
    if _is_array(batch):
        return [("array" if isinstance(batch, np.ndarray) else "tensor", row) for row in batch]
    if isinstance(batch, list | tuple):
        return [("list", row) for row in batch]
    raise ModelFault(f"a batch is an array, a tensor, a list, or several of them; got a {type(batch).__name__}")


def batch_of_rows(rows: Sequence[LooseRow]) -> Any:
    """A batch of rows that fit together."""
    way, values = rows[0][0], [value for _, value in rows]
    if not isinstance(way, tuple):
        return _joined(way, values)
    kind, *names = way
    parts = [_joined(_way(column[0]), column) for column in zip(*values, strict=True)]
    return dict(zip(names, parts, strict=True)) if kind == "named" else tuple(parts)


def _rows_of_parts(way: tuple[Any, ...], parts: Sequence[Any]) -> list[LooseRow]:
    if not parts or not all(_is_array(part) or isinstance(part, list) for part in parts):
        raise ModelFault("the parts of a batch are arrays, tensors or lists")
    if len({len(part) for part in parts}) != 1:
        raise ModelFault("the parts of a batch differ in their number of rows")
    return [(way, row) for row in zip(*parts, strict=True)]


def _joined(way: object, values: Sequence[Any]) -> Any:
    if way == "array":
        return stacked(values)
    return sys.modules["torch"].stack(list(values)) if way == "tensor" else list(values)


def _way(value: Any) -> str:
    """How the rows of one of several parts go together."""
    return "tensor" if _is_tensor(value) else "array" if isinstance(value, np.ndarray | np.generic) else "list"


def _form(value: Any) -> object:
    if isinstance(value, tuple):
        return tuple(map(_form, value))
    return (str(value.dtype), tuple(value.shape)) if hasattr(value, "dtype") and hasattr(value, "shape") else None


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    return (isinstance(value, np.ndarray) or _is_tensor(value)) and value.ndim > 0
