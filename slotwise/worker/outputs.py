"""Cut a model's outputs into rows on the host, and refuse rows with NaN or infinity in them.

An array [b, ...] or a list of b things is one output a row. A dict of arrays, or a tuple of arrays, is a model with several
outputs, each with b rows: a row's output is then a dict, or a tuple, of rows.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from slotwise.worker.slot_errors import ModelFault

logger = logging.getLogger(__name__)


class WrongCount(ModelFault):
    """The model gave more or fewer outputs than rows: nobody can tell whose they are."""

    def __init__(self, count: int | None, size: int) -> None:
        super().__init__("the model gave a wrong number of outputs")
        self.details = f"{'uncountable' if count is None else count} outputs for {size} rows"

    def __str__(self) -> str:  # for the log; the client sees `message`
        return self.details


def on_host(outputs: Any) -> Any:
    """Tensors as numpy arrays (half precision as float32), also within a dict or tuple; everything else as it is."""
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu()
        return outputs.float().numpy() if outputs.is_floating_point() else outputs.numpy()
    if type(outputs) is dict:
        return {name: on_host(value) for name, value in outputs.items()}
    if type(outputs) is tuple:
        return tuple(on_host(value) for value in outputs)
    return outputs


def rows_of(outputs: Any, size: int, m: int) -> list[Any]:
    """The first m of `size` rows, a ModelFault in the place of each that is not finite.

    Raises WrongCount where there are not exactly `size` rows.
    """
    array = isinstance(outputs, np.ndarray) and outputs.ndim > 0  # nearly every model's
    count = len(outputs) if array else _count(outputs)
    if count != size:
        raise WrongCount(count, size)
    if array:
        outputs = _own(outputs[:m])
        rows = list(outputs)
        return rows if _finite_array(outputs) else [_checked(row) for row in rows]
    if isinstance(outputs, dict):
        parts = {name: _own(value[:m]) for name, value in outputs.items()}
        return [_checked({name: value[i] for name, value in parts.items()}) for i in range(m)]
    if _several(outputs):
        several = [_own(value[:m]) for value in outputs]
        return [_checked(tuple(value[i] for value in several)) for i in range(m)]
    rows = [_checked(_own(row)) for row in outputs[:m]]
    if len(rows) != m:  # an object whose length is not the number of things in it
        raise WrongCount(len(rows), m)
    return rows


def _own(values: Any) -> Any:
    """An array's values in memory of their own: a model may write into the same memory at its next call."""
    return values.copy() if isinstance(values, np.ndarray) else values


def finite(output: Any) -> bool:
    """Whether an output, or anything in it, holds no NaN and no infinity."""
    if output is None or isinstance(output, (str, bytes, int)):
        return True
    if isinstance(output, dict):
        return all(map(finite, output.values()))
    if isinstance(output, (list, tuple)):
        return all(map(finite, output))
    return _finite_array(np.asarray(output))


def _finite_array(array: Any) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _several(outputs: Any) -> bool:
    """Whether this is a tuple of arrays: the outputs of a model that has several, not the rows of one that has one."""
    return isinstance(outputs, tuple) and bool(outputs) and all(isinstance(value, np.ndarray) for value in outputs)


def _count(outputs: Any) -> int | None:
    """How many rows there are; None where they cannot be counted, or several outputs have different numbers of rows."""
    if isinstance(outputs, str | bytes):
        return None
    parts = list(outputs.values()) if isinstance(outputs, dict) else list(outputs) if _several(outputs) else [outputs]
    try:
        counts = {len(part) for part in parts}
    except TypeError:
        return None
    return counts.pop() if len(counts) == 1 else None


def _checked(row: Any) -> Any:
    """The row itself, or a ModelFault where it is not finite or cannot be looked at."""
    try:
        return row if finite(row) else ModelFault("the model's output is not finite")
    except Exception:  # a list that holds itself, an object that cannot be looked at
        logger.warning("a row's output cannot be looked at", exc_info=True)
        return ModelFault("the model's output cannot be looked at")
