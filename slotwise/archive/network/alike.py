"""Whether a network gave the same numbers twice: a row with its mates and alone, a graph before and after, on two engines."""

from __future__ import annotations

from typing import Any

import numpy as np

FAR = 1e-3


def alike(expected: Any, given: Any) -> bool:
    """Whether each number differs by at most FAR of itself and of the largest, or of one where that is larger.

    Small outputs are compared as closely as large ones. Whole numbers are the same, or they are others.
    """
    expected, given = np.asarray(expected), np.asarray(given)
    if expected.shape != given.shape:
        return False
    if expected.dtype.kind != "f" or given.dtype.kind != "f":
        return bool((expected == given).all())
    sizes = np.abs(expected[np.isfinite(expected)])
    near = FAR * min(1.0, float(sizes.max(initial=0)))
    return bool(np.allclose(given, expected, rtol=FAR, atol=near, equal_nan=True))
