"""Cut what a model returned into rows that are nobody else's, and refuse rows with NaN or infinity in them.

An array [b, ...] is one output a row, and so is a list of b things. A dict of arrays, or a tuple of arrays, is a model with
several outputs, each with b rows: a row's output is then a dict, or a tuple, of rows.

One call cannot tell rows from columns: two arrays of two numbers each may be two rows, or two outputs for two rows. What has as
many rows as the batch at two sizes of batch is read right; `hooks.py` asks at two.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from slotwise.worker.answer import Refusal
from slotwise.worker.copies import share
from slotwise.worker.ownership import owned
from slotwise.worker.slot_errors import ModelFault, SlotError

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float64]  # numbers of any kind, for which numpy has no type but Any
ROWS = "rows"
NOT_FINITE = Refusal.of(ModelFault("the model's output is not finite"))
UNREADABLE = Refusal.of(ModelFault("the model's output cannot be looked at"))


class WrongCount(ModelFault):
    """The model gave more or fewer outputs than rows: nobody can tell whose they are."""

    def __init__(self, count: int | None, size: int) -> None:
        super().__init__("the model gave a wrong number of outputs")
        self.details = f"{'uncountable' if count is None else count} outputs for {size} rows"

    def __str__(self) -> str:  # for the log; the client sees `message`
        return self.details


@dataclass(frozen=True)
class Columns:
    """A model's several outputs, each with one entry a row. names: None where they have only their positions."""

    parts: Sequence[Array | list[object]]
    names: tuple[str, ...] | None = None

    def cut(self, m: int) -> list[object]:
        """The outputs of each of the first m rows."""
        own = [_own(part[:m]) for part in self.parts]
        if self.names is None:
            return [tuple([part[i] for part in own]) for i in range(m)]
        return [{name: part[i] for name, part in zip(self.names, own, strict=True)} for i in range(m)]


def rows_of(outputs: object, size: int, m: int, way: str = "") -> list[object]:
    """The first m of `size` rows, each nobody else's; a Refusal in the place of each that is not finite.

    way: how the outputs are read, one of `ways_to_read`. Raises WrongCount where there are not exactly `size` rows.
    """
    outputs = on_host(outputs)
    if way in ("", ROWS) and isinstance(outputs, np.ndarray) and outputs.ndim > 0:  # nearly every model's
        if len(outputs) != size:
            raise WrongCount(len(outputs), size)
        own = owned(outputs[:m])
        assert isinstance(own, np.ndarray)
        rows = list(own)
        return rows if _finite_array(own) else [_checked(row) for row in rows]
    ways = ways_to_read(outputs, size)
    read = ways.get(way) if way else next(iter(ways.values()), None)
    if read is None:
        raise WrongCount(_count(outputs), size)
    return [_checked(row) for row in (read.cut(m) if isinstance(read, Columns) else map(_owned_row, read[:m]))]


def rows_share(outputs: object, m: int, way: str) -> bool:
    """Whether two of the first m rows have an object or memory in common, which may have been filled again for each."""
    if isinstance(outputs, tuple) and way not in ("", ROWS):  # arrays
        return False
    try:
        return any(share(list(part[:m])) for part in _listed_parts(outputs))
    except Exception:  # nobody can tell
        return True


def _listed_parts(outputs: object) -> Iterator[Sequence[object] | Array]:
    """What there is of rows or columns that are objects each."""
    for part in outputs.values() if isinstance(outputs, Mapping) else [outputs]:
        if isinstance(part, list | tuple) or (isinstance(part, np.ndarray) and part.ndim and part.dtype.hasobject):
            yield part


def ways_to_read(outputs: object, size: int) -> dict[str, Columns | Array | list[object]]:
    """In which ways these can be one output a row, by a name for the way."""
    outputs = on_host(outputs)
    if isinstance(outputs, Mapping):
        names = tuple(outputs)
        if not names or not all(isinstance(name, str) for name in names):
            return {}
        parts = _columns(list(outputs.values()), size)
        return {} if parts is None else {f"columns {names}": Columns(parts, names)}
    if isinstance(outputs, np.ndarray):
        return {ROWS: outputs} if outputs.ndim > 0 and len(outputs) == size else {}
    if not isinstance(outputs, Sequence | Iterator) or isinstance(outputs, str | bytes | bytearray | memoryview | range):
        return {}
    ways: dict[str, Columns | Array | list[object]] = {}
    listed = _listed(outputs, size)
    if isinstance(outputs, tuple) and all(isinstance(part, np.ndarray) for part in map(on_host, listed)):
        parts = _columns(listed, size)
        ways |= {} if parts is None else {f"{len(listed)} columns": Columns(parts)}
    if len(listed) == size:
        ways[ROWS] = listed
    return ways


def on_host(value: object) -> object:
    """A tensor, or what else can be an array, as a numpy array (half precision as float32); everything else as it is."""
    if isinstance(value, np.ndarray | list | tuple | dict | np.generic):
        return value
    if callable(detach := getattr(value, "detach", None)):
        tensor = detach().cpu()
        return (tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor).numpy()
    return np.asarray(value) if hasattr(value, "__array__") else value


def finite(output: object) -> bool:
    """Whether an output, or anything in it, holds no NaN and no infinity."""
    if output is None or isinstance(output, str | bytes | int):
        return True
    if isinstance(output, Mapping):
        return all(map(finite, output.values()))
    if isinstance(output, list | tuple):
        return all(map(finite, output))
    return _finite_array(np.asarray(on_host(output)))


def _finite_array(array: Array) -> bool:
    if array.dtype.kind == "O":  # as pandas has it where something is missing
        return all(math.isfinite(part) for part in array.flat if isinstance(part, float))
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _columns(parts: Sequence[object], size: int) -> list[Array | list[object]] | None:
    """The parts, if there are any and each has one entry a row; else None."""
    counted: list[Array | list[object]] = []
    for part in map(on_host, parts):
        if isinstance(part, np.ndarray) and part.ndim > 0 and len(part) == size:
            counted.append(part)
        elif isinstance(part, list | tuple) and len(part) == size:
            counted.append(list(part))
        else:
            return None
    return counted or None


def _listed(outputs: Sequence[object] | Iterator[object], size: int) -> list[object]:
    """What is in there: a whole tuple, whose parts may be columns; of anything else at most one more than `size`.

    A generator may fill the same object again for its next one, and so may a sequence of an author's.
    """
    if isinstance(outputs, tuple):
        return list(outputs)
    if isinstance(outputs, list):
        return list(islice(outputs, size + 1))
    return [owned(output) for output in islice(outputs, size + 1)]


def _own(part: Array | list[object]) -> Array | list[object]:
    own = [owned(one) for one in part] if isinstance(part, list) else owned(part)
    assert isinstance(own, np.ndarray | list)
    return own


def _owned_row(row: object) -> object:
    if isinstance(row, SlotError):  # a model may refuse a row itself
        return Refusal.of(row)
    try:
        return owned(row)
    except Exception:  # what holds itself through something that cannot be copied
        logger.warning("a row's output cannot be copied", exc_info=True)
        return UNREADABLE


def _count(outputs: object) -> int | None:
    """How many outputs there are, for the log; None where that is not plain."""
    if isinstance(outputs, np.ndarray):
        return len(outputs) if outputs.ndim else None
    return len(outputs) if isinstance(outputs, Sequence) else None


def _checked(row: object) -> object:
    """The row itself, or a Refusal where it is not finite or cannot be looked at."""
    try:
        return row if isinstance(row, Refusal) or finite(row) else NOT_FINITE
    except Exception:  # a list that holds itself, an object that cannot be looked at
        logger.warning("a row's output cannot be looked at", exc_info=True)
        return UNREADABLE
