"""Compare a reduced precision with fp32 where it is to run, once an extraction and machine.

An answer of bf16 or int8 depends on the processor, so no build can vouch for it. A worker compares both precisions on a few
inputs, for about a second, and leaves the figure in `.precision.json` beside the extracted archive for the next worker.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines.processor import fingerprint
from slotwise.worker.labels import probabilities, wants_softmax

logger = logging.getLogger(__name__)

FILE = ".precision.json"
SECONDS = 1.0  # no further input is compared after that; at least one always is
# Of a probability, or of the largest output where they are none. With 0.05 a best label changes only where fp32 itself
# prefers it by less than 0.1; a precision that a profile names is refused only where it changes what fp32 is sure of.
MOST_FOR_AUTO, MOST_FOR_NAMED = 0.05, 0.25
CLASSIFIERS = ("image_classifier", "tensor_classifier")

Predict = Callable[[Any], Any]


def difference(model: Mapping[str, Any], expected: Any, found: Any) -> float:
    """How far two engines' outputs [b, ...] are apart: the largest change of a probability, or relative to the largest output.

    Infinite for another shape, or where only the second is not finite; rows that are not finite in the first do not count
    (NaN where that is all of them).
    """
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if expected.shape != found.shape:
        return float("inf")
    rows = np.isfinite(expected.reshape(len(expected), -1)).all(axis=1)
    expected, found = expected[rows], found[rows]
    if not expected.size:
        return float("nan")
    if not np.isfinite(found).all():
        return float("inf")
    scale = 1.0
    if _classifies(model, expected):
        if wants_softmax(model):
            expected, found = probabilities(expected), probabilities(found)
    else:
        scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(found - expected).max()) / scale


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


def known(model_dir: Path, name: str, precision: str, weights: Mapping[str, str]) -> float | None:
    """The difference that an earlier worker measured for this engine on such a machine; None where none did."""
    found = _read(model_dir / FILE).get(_key(model_dir, name, precision, weights))
    if not isinstance(found, dict) or "largest_difference" not in found:
        return None
    figure = found["largest_difference"]
    return float("inf") if figure is None else float(figure)


def remember(model_dir: Path, name: str, precision: str, weights: Mapping[str, str], figure: float) -> None:
    """Leave the figure for the next worker, at once or not at all: workers start side by side, the folder may be read-only."""
    path = model_dir / FILE
    partial = path.with_name(f"{FILE}.{os.getpid()}")
    entry = {"engine": f"{name}-{precision}", "largest_difference": figure if np.isfinite(figure) else None}
    try:
        content = {**_read(path), _key(model_dir, name, precision, weights): entry}
        partial.write_text(json.dumps(content, indent=2), "utf-8")
        partial.replace(path)
    except OSError:
        logger.info("the next worker will compare %s in %s again: %s cannot be written", name, precision, path)


def _classifies(model: Mapping[str, Any], outputs: Any) -> bool:
    """Whether the outputs are one score a label."""
    labels = model.get("labels", [])
    return outputs.ndim == 2 and (model.get("handler") in CLASSIFIERS or len(labels) == outputs.shape[1] > 1)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _key(model_dir: Path, name: str, precision: str, weights: Mapping[str, str]) -> str:
    """A digest of what the figure depends on: engine, its version, precision, processor, weights."""
    try:
        release = version(name)
    except PackageNotFoundError:
        release = ""
    files = [model_dir / file.split(":")[0] for _, file in sorted(weights.items())]
    seen = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    facts = json.dumps([name, release, precision, fingerprint(), seen])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
