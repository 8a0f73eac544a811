"""A tensor in, a label and probabilities out.

The body is the raw tensor (little-endian, by `input.dtype` and `input.shape` of model.toml), a .npy file, or JSON nested
lists. `input.mean` and `input.std` are applied a channel. [options] softmax = false: the graph ends in its own softmax.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Request, Settings, Unprocessable
from slotwise.worker.labels import classified, in_words


class TensorClassifier(BatchHandler):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        described = settings.model["input"]
        self.shape, self.dtype = tuple(described["shape"]), np.dtype(described.get("dtype", "float32"))
        self.bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.wanted = f"expected {self.dtype} of shape {'x'.join(map(str, self.shape))}"
        sides = [-1] + [1] * (len(self.shape) - 1)
        self.mean = np.reshape(described["mean"], sides) if described.get("mean") else None
        self.std = np.reshape(described["std"], sides) if described.get("std") else None
        return super().load(model_dir, settings)

    def example(self) -> Any:
        return np.zeros(self.shape, self.dtype)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        if body.startswith(b"\x93NUMPY"):
            array = self.from_npy(body)
        elif "json" in headers.get("content-type", ""):
            array = self.from_json(body)
        elif len(body) == self.bytes:
            array = np.frombuffer(body, self.dtype.newbyteorder("<")).reshape(self.shape)
        else:
            raise BadRequest(f"{self.wanted}: {self.bytes} bytes, little-endian; got {len(body)} bytes")
        if [side for side in array.shape if side != 1] != [side for side in self.shape if side != 1]:
            raise Unprocessable(f"{self.wanted}; got {'x'.join(map(str, array.shape)) or 'one number'}")
        with np.errstate(over="ignore"):  # 1e300 becomes infinity and is refused as such
            array = array.reshape(self.shape).astype(self.dtype)
        if not np.isfinite(array).all():
            raise Unprocessable(f"{self.wanted}, finite numbers only; got NaN or infinity")
        array = array if self.mean is None else array - self.mean
        return [(array if self.std is None else array / self.std).astype(self.dtype, copy=False)]

    def from_npy(self, body: bytes) -> Any:
        try:
            array = np.load(io.BytesIO(body), allow_pickle=False)
        except Exception as error:
            raise BadRequest(f"{self.wanted}; the .npy file cannot be read") from error
        if array.dtype.newbyteorder("=") != self.dtype:
            raise Unprocessable(f"{self.wanted}; got {array.dtype}")
        return array

    def from_json(self, body: bytes) -> Any:
        try:
            array = np.array(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{self.wanted}, as JSON lists of equal length") from error
        if array.dtype.kind not in "iuf" or (self.dtype.kind in "iu" and (array != array.astype(self.dtype)).any()):
            raise Unprocessable(f"{self.wanted}; got other values")
        return array

    def encode(self, output: Any, item: Any) -> Any:
        softmax = self.model.get("options", {}).get("softmax", True)
        return classified(output, self.model.get("labels", []), self.model.get("top_k", 5), softmax=softmax)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return in_words(request, *super().respond(request, results))


handle = TensorClassifier.entry_point()
