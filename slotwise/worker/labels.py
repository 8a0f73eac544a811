"""Turn a classifier's scores into its answer: `{"label": "7", "probabilities": {"7": 0.98, "1": 0.01}}`, best first.

What a network's numbers are is one of four: probabilities, logits, a regression's values, which are answered as
`{"value": 3.1}`, or an embedding, `{"embedding": [0.1, -0.7]}`. `output` in model.toml says it, where that is not plain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slotwise.worker.request import Request
from slotwise.worker.slot_errors import ModelFault

KINDS = ("probabilities", "logits", "regression", "embedding")
SCORELESS = ("regression", "embedding")  # answered as they are, not as a label
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


def declared_output(model: Mapping[str, Any]) -> tuple[str, str]:
    """Which output of the graph model.toml names, and what it says of its numbers ("scores:logits"); "" for what is left."""
    output = str(model.get("output") or "")
    name, _, kind = output.rpartition(":")
    return (name, kind) if kind in KINDS else (output, "")


def kind_of(model: Mapping[str, Any]) -> str:
    """What a model's numbers are: one of KINDS."""
    return declared_output(model)[1] or ("logits" if wants_softmax(model) else "probabilities")


def wants_softmax(model: Mapping[str, Any]) -> bool:
    """Whether a model's outputs are logits, so that a softmax has to follow.

    `output` or [options] softmax in model.toml decides. Without them they are, unless the build found a softmax at the end of
    the graph.
    """
    if kind := declared_output(model)[1]:
        return kind == "logits"
    options = model.get("options", {})
    return bool(options.get("softmax", not options.get("onnx", {}).get("softmax")))


def scores(outputs: Any, model: Mapping[str, Any]) -> Any:
    """A network's outputs [b, ...] as what is answered: probabilities [b, classes], or other values as they are.

    One number a row is the second of two labels', where model.toml says what it is.
    """
    kind = kind_of(model)
    if kind in SCORELESS:
        return outputs
    if declared_output(model)[1] and math.prod(np.shape(outputs)[1:]) == 1:
        second = np.array(outputs, np.float64).reshape(-1, 1)
        if kind == "logits":
            second = np.exp(-np.logaddexp(0.0, -second))
        return np.concatenate([1.0 - second, second], axis=1)
    return probabilities(outputs) if kind == "logits" else outputs


def answering(model: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """What makes the model's answer of one row of what `scores` gives."""
    labels, top_k = model.get("labels", []), model.get("top_k", 5)
    kind = kind_of(model)
    if kind == "embedding":
        return lambda row: {"embedding": _decimals(row)}
    return (lambda row: _values(row, labels)) if kind == "regression" else _classifying(labels, top_k)


def answered(row: Any, model: Mapping[str, Any]) -> dict[str, Any]:
    """One row of what `scores` gives as the model's answer."""
    return answering(model)(row)


def _decimals(row: Any) -> list[float]:
    """The numbers of a row in as many digits as they have: 3.1, where the nearest float32 would be 3.0999999."""
    return [float(str(value)) for value in np.ravel(row)]


def _values(row: Any, labels: Sequence[str]) -> dict[str, Any]:
    """A regression's answer."""
    values = _decimals(row)
    if labels:
        if len(labels) != len(values):
            raise ModelFault(f"the model gives {len(values)} values for {len(labels)} labels")
        return {"values": dict(zip(labels, values, strict=True))}
    return {"value": values[0]} if len(values) == 1 else {"values": values}


def classified(row: Any, labels: Sequence[str], top_k: int) -> dict[str, Any]:
    """The best `top_k` of one row of probabilities [classes]. Without labels classes are numbered."""
    return _classifying(labels, top_k)(row)


def _classifying(labels: Sequence[str], top_k: int) -> Callable[[Any], dict[str, Any]]:
    def classify(row: Any) -> dict[str, Any]:
        if labels and len(labels) != len(row):
            raise ModelFault(f"the model gives {len(row)} scores for {len(labels)} labels")
        if len(row) <= FEW:
            scores = row.tolist()
            best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_k]
        else:
            best = (-row).argsort(kind="stable")[:top_k].tolist()  # of equals the one with the lower number, here as there
            scores = {i: float(row[i]) for i in best}
        # Python's round takes longer than all the rest of this line
        rounded = {labels[i] if labels else str(i): math.floor(scores[i] * STEPS + 0.5) / STEPS for i in best}
        return {"label": next(iter(rounded)), "probabilities": rounded}

    return classify


def in_words(request: Request, body: Any, content_type: str) -> tuple[Any, str]:
    """The bare label or value where the client accepts only text (`Accept: text/plain`), else the answer as it is."""
    if request.headers.get("accept", "").startswith("text/plain") and isinstance(body, dict):
        bare = body.get("label", body.get("value", body))
        return bare if isinstance(bare, str) else json.dumps(bare), "text/plain; charset=utf-8"
    return body, content_type
