"""The handler of misbehaving.py for Slotwise, as docs/own-model.md has one."""

from pathlib import Path
from typing import Any

import misbehaving
import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings


class Engine:
    """[b, 9] to [b, 6]. network: of misbehaving.py."""

    name, precision, device = "numpy", "fp64", "cpu"

    def __init__(self, network: str) -> None:
        self.network = getattr(misbehaving, network)

    def __call__(self, rows: Any) -> Any:
        return misbehaving.predict(rows, self.network)


class Misbehaving(BatchHandler):
    def load(self, model_dir: Path, settings: Settings) -> Engine:
        return Engine(settings.model["options"]["network"])

    def example(self) -> Any:
        return np.array([3, 1, 4, 1, 5, 9, 2, 6, 0.0])

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        try:
            return [misbehaving.decode(body)]
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def encode(self, output: Any, item: Any) -> Any:
        return misbehaving.encode(output)


handle = Misbehaving.entry_point()
