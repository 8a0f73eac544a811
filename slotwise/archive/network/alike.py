"""Whether a network gave the same numbers twice: a row with its mates and alone, a graph before and after, on two engines."""

from __future__ import annotations

from typing import Any

import numpy as np

FAR = 1e-3


def alike(wanted: Any, found: Any) -> bool:
    """Whether each number differs by at most FAR of itself and of the largest, or of one where that is larger.

    Small outputs are compared as closely as large ones. Whole numbers are the same, or they are others.
    """
    wanted, found = np.asarray(wanted), np.asarray(found)
    if wanted.shape != found.shape:
        return False
    if wanted.dtype.kind != "f" or found.dtype.kind != "f":
        return bool((wanted == found).all())
    sizes = np.abs(wanted[np.isfinite(wanted)])
    near = FAR * min(1.0, float(sizes.max(initial=0)))
    return bool(np.allclose(found, wanted, rtol=FAR, atol=near, equal_nan=True))
