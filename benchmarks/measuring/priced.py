"""A handler for benchmarks/measuring/adversaries.py: a body's first line says what it costs, and whether it fails its batch.

b"1.5 ok\n..." takes 1.5 ms of the processor beside the batch's own; b"1 fail\n..." raises. The answer is its checksum.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slotwise.worker import BatchHandler, Headers, Settings

BATCH_S = 0.004


class Row(NamedTuple):
    """cost_s: of the processor's time. fails: the batch that it is in. checksum: of its body."""

    cost_s: float
    fails: bool
    checksum: int


class Priced(BatchHandler):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def example(self) -> Row:
        return Row(0.0, False, 0)

    def decode(self, body: bytes, headers: Headers) -> list[Row]:
        cost_ms, word = body.partition(b"\n")[0].split()
        return [Row(float(cost_ms) / 1000, word == b"fail", zlib.crc32(body))]

    def collate(self, items: list[Row]) -> list[Row]:
        return items

    def predict(self, inputs: Sequence[Row]) -> list[int]:
        if any(row.fails for row in inputs):
            raise ValueError("there is a row that cannot be computed")
        until = time.thread_time() + BATCH_S + sum(row.cost_s for row in inputs)
        while time.thread_time() < until:
            pass
        return [row.checksum for row in inputs]


handle = Priced.entry_point()
