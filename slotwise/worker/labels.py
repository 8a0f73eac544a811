"""Turn a classifier's scores into its answer: `{"label": "7", "probabilities": {"7": 0.98, "1": 0.01}}`, best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault

STEPS = 1e6  # a probability has six digits
FEW = 32  # classes that are sorted quicker without numpy


def probabilities(logits: Any) -> Any:
    """The softmax of every row: logits [b, classes, ...] to probabilities [b, classes]. A row that is not finite gives NaN."""
    values = np.array(logits, np.float64).reshape(len(logits), -1)
    with np.errstate(invalid="ignore"):
        values -= np.maximum.reduce(values, axis=1, keepdims=True)
        np.exp(values, out=values)
        values /= np.add.reduce(values, axis=1, keepdims=True)
    return values


def wants_softmax(model: Mapping[str, Any]) -> bool:
    """Whether a model's outputs are logits, so that a softmax has to follow.

    [options] softmax in model.toml decides. Without it they are, unless the build found a softmax at the end of the graph.
    """
    options = model.get("options", {})
    return bool(options.get("softmax", not options.get("onnx", {}).get("softmax")))


def classified(row: Any, labels: Sequence[str], top_k: int) -> dict[str, Any]:
    """The best `top_k` of one row of probabilities [classes]. Without labels classes are numbered."""
    if labels and len(labels) != len(row):
        raise ModelFault(f"the model gives {len(row)} scores for {len(labels)} labels")
    # Python's round takes longer than all the rest of this line
    probabilities_by_label = {
        labels[i] if labels else str(i): int(score * STEPS + 0.5) / STEPS for i, score in _best(row, top_k)
    }
    return {"label": next(iter(probabilities_by_label)), "probabilities": probabilities_by_label}


def _best(row: Any, top_k: int) -> Iterable[tuple[int, float]]:
    """The classes with the best scores, and these, the best first; of equals the one with the lower number."""
    if len(row) <= FEW:
        scores = row.tolist()
        return [(i, scores[i]) for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_k]]
    best = (-row).argsort(kind="stable")[:top_k]
    return zip(best.tolist(), row[best].tolist(), strict=True)


def in_words(request: Request, body: Any, content_type: str) -> tuple[Any, str]:
    """The bare label where the client accepts only text (`Accept: text/plain`), else the answer as it is."""
    if request.headers.get("accept", "").startswith("text/plain") and isinstance(body, dict):
        return body["label"], "text/plain; charset=utf-8"
    return body, content_type
