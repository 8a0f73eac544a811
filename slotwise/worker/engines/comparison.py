"""Compare a reduced precision with fp32 where it is to run, on a few inputs and for about a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slotwise.worker.labels import CLASSIFIERS, SCORELESS, kind_of, scores

SECONDS = 1.0  # no further input is compared after that; at least one always is
# The largest difference (see `difference`) with which a reduced precision is served. With 0.05 a best label changes only where
# fp32 itself prefers it by less than 0.1. A precision that a profile names is refused only where it changes answers that fp32
# is sure of.
MOST_FOR_AUTO, MOST_FOR_NAMED = 0.05, 0.25

Predict = Callable[[Any], Any]


def difference(model: Mapping[str, Any], expected: Any, observed: Any) -> float:
    """How far two engines' outputs [b, ...] are apart: the largest difference of any number.

    Of a classifier's outputs that is a difference of probabilities, of any other's a share of the largest expected output.
    Infinite for another shape, and where only `observed` is not finite. A row that is not finite in `expected` does not
    count; NaN where no row is left.
    """
    expected, observed = np.asarray(expected, np.float64), np.asarray(observed, np.float64)
    if expected.shape != observed.shape:
        return float("inf")
    rows = np.isfinite(expected.reshape(len(expected), -1)).all(axis=1)
    expected, observed = expected[rows], observed[rows]
    if not expected.size:
        return float("nan")
    if not np.isfinite(observed).all():
        return float("inf")
    scale = 1.0
    if _classifies(model, expected):
        expected, observed = scores(expected, model), scores(observed, model)
    else:
        scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(observed - expected).max()) / scale


def compare(model: Mapping[str, Any], reference: Predict, other: Predict, inputs: Sequence[Any]) -> float:
    """The largest difference on `inputs`, as many of them as a second allows.

    Raises what an engine raises, and ValueError where there was nothing to compare.
    """
    stop_at = time.monotonic() + SECONDS
    figures: list[float] = []
    for rows in inputs:
        figures.append(difference(model, reference(rows), other(rows)))
        if time.monotonic() > stop_at:
            break
    measured = [figure for figure in figures if not np.isnan(figure)]
    if not measured:
        raise ValueError("the outputs are not finite in fp32 on any input")
    return max(measured)


def _classifies(model: Mapping[str, Any], outputs: Any) -> bool:
    """Whether the outputs are one score a label."""
    labels = model.get("labels", [])
    if kind_of(model) in SCORELESS:
        return False
    return outputs.ndim == 2 and (model.get("handler") in CLASSIFIERS or len(labels) == outputs.shape[1] > 1)
