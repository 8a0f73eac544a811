"""A model that doubles a number, and fails at a share of its requests: FAILS in 100."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BatchHandler, Headers, Settings

FAILS = 20


class Engine:
    """[b, 1] to [b, 1]."""

    name, precision, device = "numpy", "fp32", "cpu"

    def __call__(self, rows: Any) -> Any:
        return rows * 2 + 1


class Flaky(BatchHandler):
    """A body is a number."""

    def load(self, model_dir: Path, settings: Settings) -> Engine:
        return Engine()

    def example(self) -> Any:
        return np.zeros(1)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.array([float(body)])]

    def encode(self, output: Any, item: Any) -> Any:
        if random.random() < FAILS / 100:
            raise RuntimeError("one of those")
        return {"answer": float(output[0])}


handle = Flaky.entry_point()
