"""Pad a group of rows to a size that the engine is prepared for.

none        the engine takes any size: m rows stay m
bucketed    the engine prefers few sizes: m rows become the next rung of the ladder
static      the engine takes prepared sizes only: always the top rung, unless isolation asks for a lower one
fixed       always the top rung, also where isolation runs fewer rows: the shape of a call never changes

The ladder is b, b/2, b/4, ... 1: the sizes that an engine prepares when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KINDS = ("none", "static", "bucketed", "fixed")


def ladder(batch_size: int) -> list[int]:
    """b, b/2, b/4, ... 1, largest first."""
    rungs = [batch_size]
    while rungs[-1] > 1:
        rungs.append(rungs[-1] // 2)
    return rungs


@dataclass(frozen=True)
class Padding:
    """How groups are padded. kind: one of KINDS; max_rows: the most rows of one call."""

    kind: str
    max_rows: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"padding is {self.kind!r}, but it must be one of {', '.join(KINDS)}")
        if self.max_rows < 1:
            raise ValueError(f"max_rows is {self.max_rows}, but it must be at least 1")

    @property
    def shrinks(self) -> bool:
        """Whether fewer rows may take less memory."""
        return self.kind != "fixed"

    def sizes(self) -> list[int]:
        """The sizes to warm an engine up with, largest first; for "none" only the largest and 1, for "fixed" only that one."""
        if self.kind == "fixed":
            return [self.max_rows]
        return ladder(self.max_rows) if self.kind != "none" else sorted({self.max_rows, 1}, reverse=True)

    def size(self, m: int, limit: int) -> int:
        """The padded size of m rows (1 <= m <= limit <= max_rows) where at most `limit` rows may run at once."""
        if self.kind == "none":
            return m
        if self.kind == "fixed":
            return self.max_rows
        least = limit if self.kind == "static" else m
        return next(rung for rung in reversed(ladder(self.max_rows)) if rung >= least)

    def next_limit(self, size: int) -> int:
        """The limit after `size` rows turned out to be too many: half of them (0 where one row was too many)."""
        return size // 2


def stacked(rows: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Arrays of one shape as one array [b, ...]; of masked ones the masks, too, which numpy.stack leaves out."""
    import numpy as np  # noqa: PLC0415  as below

    masked = any(issubclass(kind, np.ma.MaskedArray) for kind in set(map(type, rows)))
    return np.ma.stack(rows) if masked else np.stack(rows)


def pad_sequences(
    sequences: Sequence[Sequence[int]], value: int, multiple: int = 1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token sequences of unequal length as one rectangle, padded on the right with `value`.

    Returns ids [b, t] and mask [b, t] (1 = token, 0 = padding), both int64; t is the longest length rounded up to `multiple`.
    """
    import numpy as np  # noqa: PLC0415  a guard's copy of this runs where there may be none

    longest = max((len(sequence) for sequence in sequences), default=0)
    t = -(-max(longest, 1) // multiple) * multiple
    ids = np.full((len(sequences), t), value, dtype=np.int64)
    mask = np.zeros((len(sequences), t), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask
