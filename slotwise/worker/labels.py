"""A classifier's scores to its answer: `{"label": "7", "probabilities": {"7": 0.98, "1": 0.01}}`, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotwise.worker.batch import Request
from slotwise.worker.errors import ModelFault

DIGITS = 6  # of a probability


def classified(scores: Any, labels: Sequence[str], top_k: int, *, softmax: bool = True) -> dict[str, Any]:
    """The best `top_k` of one row of scores [classes]; softmax: they are logits. Without labels classes are numbered."""
    values = np.asarray(scores, np.float64).reshape(-1)
    if labels and len(labels) != len(values):
        raise ModelFault(f"the model gives {len(values)} scores for {len(labels)} labels")
    if softmax:
        values = np.exp(values - values.max())
        values /= values.sum()
    best = np.argsort(-values, kind="stable")[:top_k]
    names = [labels[i] if labels else str(i) for i in best]
    return {"label": names[0], "probabilities": dict(zip(names, values[best].round(DIGITS).tolist(), strict=True))}


def in_words(request: Request, body: Any, content_type: str) -> tuple[Any, str]:
    """The bare label where the client accepts only text (`Accept: text/plain`), else the answer as it is."""
    if request.headers.get("accept", "").startswith("text/plain") and isinstance(body, dict):
        return body["label"], "text/plain; charset=utf-8"
    return body, content_type
