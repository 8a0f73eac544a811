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
from slotwise.worker.slot_errors import ModelFault, SlotError

CLASSIFIERS = (
    "image_classifier",
    "tensor_classifier",
    "tabular",
    "text_classifier",
    "embedder",
)  # the given handlers that answer so
KINDS = ("probabilities", "logits", "regression", "embedding")
SCORELESS = ("regression", "embedding")  # answered as they are, not as a label
MMS = "mms"  # options.answer: the list that Multi Model Server's own vision handlers answer with
EVERY_SCORE = "x-scores"  # a request with this header is answered with every score beside the answer
RAW_NUMBERS = "application/octet-stream; of=numbers"  # a body that is a tensor's own bytes, whatever text they look like
LEAST = float(np.finfo(np.float32).min)  # stands for minus infinity, which a logit may be and JSON cannot hold
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


def with_own_numbers(outputs: Any, model: Mapping[str, Any]) -> Any:
    """What `scores` gives, each row with the network's own numbers where those are others; `divided` takes them apart.

    [b, classes], or of logits [b, 2, classes], or of one number a row [b, 3, 1].
    """
    kind = kind_of(model)
    if kind in SCORELESS:
        return outputs
    own = np.reshape(outputs, (len(outputs), -1))
    answered = scores(own, model)
    if answered.shape != own.shape:  # one number, which is the second of two labels'
        return np.concatenate([answered, np.maximum(own, LEAST)], axis=1)[:, :, None]
    if kind == "probabilities":
        return answered
    both = np.empty((len(own), 2, own.shape[1]))
    both[:, 0] = answered
    np.maximum(own, LEAST, out=both[:, 1])
    return both


def divided(row: Any, kind: str) -> tuple[Any, Any | None]:
    """A row of what `with_own_numbers` gives: the scores [classes], and the network's own numbers where those are others."""
    if kind in SCORELESS or row.ndim == 1:
        return np.ravel(row), None
    return (row[:2, 0], row[2:, 0]) if len(row) == 3 else (row[0], row[1])


def answering(model: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What makes the model's answer of one row of what `scores` gives. Raises ValueError for an `options.answer` of no kind."""
    labels, top_k = model.get("labels", []), model.get("top_k", 5)
    kind, shape = kind_of(model), model.get("options", {}).get("answer", "")
    if shape not in ("", MMS) or (shape and kind in SCORELESS):
        raise ValueError(f"options.answer is {shape!r}, but a classifier's can only be {MMS!r}")
    if kind == "embedding":
        return lambda row: {"embedding": decimals(row)}
    if kind == "regression":
        return lambda row: _values(row, labels)
    classify = _classifying(labels, top_k)
    return (lambda row: _listed(classify(row))) if shape else classify


def _listed(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As MMS has it: `[{"probability": 0.98, "class": "n02123045 tabby, tabby cat"}, ...]`."""
    return [{"probability": score, "class": label} for label, score in answer["probabilities"].items()]


def unlisted(answer: Any) -> Any:
    """An answer as MMS has it in the usual form; any other as it is."""
    if not isinstance(answer, list) or not answer:
        return answer
    if not all(isinstance(entry, dict) and entry.keys() == {"probability", "class"} for entry in answer):
        return answer
    probabilities = {str(entry["class"]): entry["probability"] for entry in answer}
    return {"label": str(answer[0]["class"]), "probabilities": probabilities}


def answered(row: Any, model: Mapping[str, Any]) -> Any:
    """One row of what `scores` gives as the model's answer."""
    return answering(model)(row)


def decimals(numbers: Any) -> list[float]:
    """The numbers of an array, flat, in as many digits as they have: 3.1, where the nearest float32 would be 3.0999999.

    Half precision has the digits of float32, which holds it exactly: as text 65504 would be 65500.
    """
    flat = np.ravel(numbers)
    return [float(str(value)) for value in (flat.astype(np.float32) if flat.dtype == np.float16 else flat)]


def _values(row: Any, labels: Sequence[str]) -> dict[str, Any]:
    """A regression's answer."""
    values = decimals(row)
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
            best = (-np.asarray(row, np.float64)).argsort(kind="stable")[:top_k].tolist()  # of equals the first, as above
            scores = {i: float(row[i]) for i in best}
        # Python's round takes longer than all the rest of this line
        rounded = {labels[i] if labels else str(i): math.floor(scores[i] * STEPS + 0.5) / STEPS for i in best}
        return {"label": next(iter(rounded)), "probabilities": rounded}

    return classify


def in_words(request: Request, body: Any, content_type: str) -> tuple[Any, str]:
    """The bare label or value where the client accepts only text (`Accept: text/plain`), else the answer as it is."""
    if request.headers.get("accept", "").startswith("text/plain") and isinstance(body := unlisted(body), dict):
        bare = body.get("label", body.get("value", body))
        return bare if isinstance(bare, str) else json.dumps(bare), "text/plain; charset=utf-8"
    return body, content_type


class ClassifierAnswers:
    """Makes a given classifier's answers: of the network's outputs, of one row, and of one request.

    A row's result is its answer and its numbers. `shown` leaves out the numbers, unless the request wants every score.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.model, self.kind, self.answer = model, kind_of(model), answering(model)

    def rows(self, outputs: Any) -> Any:
        """The network's outputs [b, ...] as what `result` takes, a row each."""
        return with_own_numbers(outputs, self.model)

    def result(self, row: Any) -> tuple[Any, Any]:
        """One row's answer, and the row for `shown`."""
        return self.answer(row if self.kind in SCORELESS or row.ndim == 1 else divided(row, self.kind)[0]), row

    def shown(self, request: Request, results: Sequence[Any]) -> list[Any]:
        """One request's results as they are answered.

        With the header `x-scores: all` each is `{"answer": ..., "scores": [...], "outputs": [...]}`: the answer, every class's
        score in the order of the labels, and where they are others the network's own numbers.
        """
        if request.headers.get(EVERY_SCORE, "") != "all":
            return [result if isinstance(result, SlotError) else result[0] for result in results]
        return [result if isinstance(result, SlotError) else self._in_full(*result) for result in results]

    def _in_full(self, answer: Any, row: Any) -> dict[str, Any]:
        numbers, own = divided(np.asarray(row), self.kind)
        outputs = {} if own is None else {"outputs": own.tolist()}
        return {"answer": answer, "scores": numbers.tolist(), **outputs}
