"""A model whose answers are as large as its requests: a list of numbers, each larger by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings

WIDTH = 768


class Engine:
    """[b, 768] to [b, 768]."""

    name, precision, device = "numpy", "fp32", "cpu"

    def __call__(self, rows: Any) -> Any:
        return rows + 1


class Wide(BatchHandler):
    """A body is a JSON list of 768 numbers."""

    def load(self, model_dir: Path, settings: Settings) -> Engine:
        return Engine()

    def example(self) -> Any:
        return np.zeros(WIDTH)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        try:
            row = np.array(json.loads(body), np.float64)
        except (ValueError, TypeError):
            row = np.zeros(0)
        if row.shape != (WIDTH,):
            raise BadRequest(f"the body is no list of {WIDTH} numbers")
        return [row]

    def encode(self, output: Any, item: Any) -> Any:
        return {"values": output.tolist()}


handle = Wide.entry_point()
