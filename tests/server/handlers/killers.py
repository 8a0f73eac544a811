"""A model that doubles a number, and ends its own worker on a given word: what no code in the worker can survive."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings

NUMBER, EXIT, SEGFAULT = range(3)
WORDS = {"exit": EXIT, "segfault": SEGFAULT}


class Engine:
    """[b, 2] (what to do, number) to [b, 1] (2 * number + 1)."""

    name, precision, device = "numpy", "fp32", "cpu"

    def __call__(self, rows: Any) -> Any:
        for word, wish in WORDS.items():
            for number in rows[rows[:, 0] == wish, 1]:
                with open(Path(os.environ["SLOTWISE_STATE"]) / "deaths.txt", "a") as deaths:
                    deaths.write(f"{word} {number:.0f} {os.getpid()}\n")
        if EXIT in rows[:, 0]:
            os._exit(1)
        if SEGFAULT in rows[:, 0]:
            ctypes.string_at(0)
        time.sleep(0.01)
        return rows[:, 1:] * 2 + 1


class Killers(BatchHandler):
    """A body is a number, or a word that ends the worker, and a number: `exit 7`. Who ended one is in deaths.txt."""

    def load(self, model_dir: Path, settings: Settings) -> Engine:
        return Engine()

    def example(self) -> Any:
        return np.zeros(2)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        word, _, number = body.decode("ascii").rpartition(" ")
        if (word and word not in WORDS) or not number.isdecimal():
            raise BadRequest(f"{word or number!r} means nothing here")
        return [np.array([WORDS.get(word, NUMBER), float(number)])]

    def encode(self, output: Any, item: Any) -> Any:
        return {"answer": float(output[0])}


handle = Killers.entry_point()
