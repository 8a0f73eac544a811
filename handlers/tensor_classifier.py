"""Classify tensors: a tensor in, its label and probabilities out.

A body is raw little-endian numbers of `input.dtype` and `input.shape`, a .npy file, or nested lists in JSON, also where nothing
says so. `input.mean` and `input.std` are applied to each channel. `output` in model.toml says what the network gives:
"probabilities", "logits" (the default, unless an ONNX graph ends in a softmax), "regression", which is answered as
`{"value": 3.1}`, or "embedding", as `{"embedding": [0.1, -0.7]}`. With the header `x-scores: all` every class's score stands
beside the answer.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Request, Settings, Unprocessable
from slotwise.worker.labels import RAW_NUMBERS, ClassifierAnswers, in_words
from slotwise.worker.tensors.raw_numbers import BINARY, RawNumbers

NEUTRAL = {"mean": 0, "std": 1}
EXACT = 1 << 53  # float64 holds every whole number below


class TensorClassifier(BatchHandler):
    raw_numbers = True

    def load(self, model_dir: Path, settings: Settings) -> Any:
        spec = settings.model["input"]
        self.shape, self.dtype = tuple(spec["shape"]), np.dtype(spec.get("dtype", "float32"))
        self.raw = RawNumbers(self.dtype, self.shape)
        self.expected = f"expected {self.dtype} of shape {'x'.join(map(str, self.shape))}"
        sides = [-1] + [1] * (len(self.shape) - 1)
        self.mean, self.std = (np.reshape(np.float32(spec.get(key) or neutral), sides) for key, neutral in NEUTRAL.items())
        self.answers = ClassifierAnswers(self.model)
        self.scaled = bool(self.mean.any() or (self.std != 1).any())
        return super().load(model_dir, settings)

    def example(self) -> Any:
        return np.zeros(self.shape, self.dtype)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        if headers.get("content-type") == RAW_NUMBERS:  # of V2, which says what they are
            array = self.from_raw(body)
        elif body.startswith(b"\x93NUMPY"):
            array = self.shaped(self.from_npy(body))
        elif "json" in headers.get("content-type", "").lower() or _is_json(body):
            array = self.shaped(self.from_json(body))
        elif headers.get("content-type", "").lower().startswith("text/csv") or (self.dtype.kind == "f" and _is_text(body)):
            raise BadRequest(f"{self.expected}, as raw numbers, .npy or JSON; got text")
        else:
            array = self.from_raw(body)
        if not np.isfinite(array).all():
            raise Unprocessable(f"{self.expected}, finite numbers only; got NaN or infinity")
        return [array]

    def collate(self, items: list[Any]) -> Any:
        rows = np.concatenate(items).reshape(len(items), *self.shape)
        return ((rows - self.mean) / self.std).astype(self.dtype, copy=False) if self.scaled else rows

    def predict(self, inputs: Any) -> Any:
        return self.answers.rows(super().predict(inputs))

    def from_raw(self, body: bytes) -> Any:
        if len(body) != self.raw.bytes:
            raise BadRequest(f"{self.expected}: {self.raw.bytes} bytes, little-endian; got {len(body)} bytes")
        return self.raw.shown(body)

    def from_npy(self, body: bytes) -> Any:
        try:
            array = np.load(io.BytesIO(body), allow_pickle=False)
        except Exception as error:
            raise BadRequest(f"{self.expected}; the .npy file cannot be read") from error
        if array.dtype.newbyteorder("=") != self.dtype:
            raise Unprocessable(f"{self.expected}; got {array.dtype}")
        return array

    def from_json(self, body: bytes) -> Any:
        try:
            text = body.decode(json.detect_encoding(body))
            array = np.array(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{self.expected}, as JSON lists of equal length") from error
        truths = "true" in text or "false" in text  # beside numbers numpy takes them for 1 and 0
        if truths or array.dtype.kind not in "iuf" or (self.dtype.kind in "iu" and not self.whole(array)):
            raise Unprocessable(f"{self.expected}; got other values")
        return array

    def whole(self, array: Any) -> bool:
        """Whether the numbers are those of the JSON, and `dtype` holds them: beside a fraction all are read as float64."""
        exact = array.dtype.kind != "f" or (np.abs(array) < EXACT).all()
        return bool(exact and (array == array.astype(self.dtype)).all())

    def shaped(self, array: Any) -> Any:
        if array.shape != self.shape and [n for n in array.shape if n != 1] != [n for n in self.shape if n != 1]:
            raise Unprocessable(f"{self.expected}; got {'x'.join(map(str, array.shape)) or 'one number'}")
        with np.errstate(over="ignore"):  # 1e300 becomes infinity and is refused as such
            return array.reshape(self.shape).astype(self.dtype, copy=False)

    def encode(self, output: Any, item: Any) -> Any:
        return self.answers.result(output)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return in_words(request, *super().respond(request, self.answers.shown(request, results)))


def _is_json(body: bytes) -> bool:
    """Whether a body is a list in JSON, although nothing says so."""
    if not body.lstrip().startswith(b"["):
        return False
    try:
        return isinstance(json.loads(body), list)
    except (ValueError, RecursionError):
        return False


def _is_text(body: bytes) -> bool:
    """Whether a body is of letters, digits and signs alone; numbers that are made of such are hardly anybody's."""
    return bool(body) and not BINARY(body)


handle = TensorClassifier.entry_point()
