"""A model that doubles a number, and breaks in a given way on a given word: what a batch must survive."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings

# What a proof makes up of an item is none of these.
NUMBER, RAISE, NAN, MUTE, SILENT, SLEEP, DIE, SHORT, LONG, TORN = (100.5 + i for i in range(10))
WORDS = {"raise": RAISE, "nan": NAN, "mute": MUTE, "silent": SILENT, "die": DIE, "short": SHORT, "torn": TORN}


class Engine:
    """[b, 2] (what to do, number) to [b, 2] (what to do, 2 * number + 1)."""

    name, precision, device = "numpy", "fp32", "cpu"
    dead = False

    def __call__(self, rows: Any) -> Any:
        wishes = set(rows[:, 0].tolist())
        self.dead = self.dead or DIE in wishes
        if self.dead or RAISE in wishes:
            raise RuntimeError("the model broke on /secret/path")
        if SLEEP in wishes:
            time.sleep(float(rows[rows[:, 0] == SLEEP, 1].max()))
        if TORN in wishes:  # as a library that writes where its host talks, and ends the process
            for descriptor in range(3, 64):
                with suppress(OSError):
                    os.write(descriptor, b"{\n")
            os._exit(1)
        outputs = rows * [1, 2] + [0, 1]
        outputs[rows[:, 0] == NAN, 1] = np.nan
        return outputs[1:] if SHORT in wishes else outputs


class Faults(BatchHandler):
    """A body is a number, `sleep SECONDS`, `long CHARACTERS` (of answer), or a word that breaks something."""

    def load(self, model_dir: Path, settings: Settings) -> Engine:
        return Engine()

    def example(self) -> Any:
        return np.zeros(2)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        word, _, number = body.decode("ascii").partition(" ")
        if word in WORDS:
            return [np.array([WORDS[word], 0.0])]
        if word in ("sleep", "long"):
            return [np.array([SLEEP if word == "sleep" else LONG, float(number)])]
        try:
            return [np.array([NUMBER, float(word)])]
        except ValueError:
            raise BadRequest(f"{word!r} is not a number") from None

    def encode(self, output: Any, item: Any) -> Any:
        if item[0] == SILENT:
            raise KeyError("/secret/path")
        if item[0] == LONG:
            return {"answer": "x" * int(item[1])}
        return object() if item[0] == MUTE else {"answer": float(output[1])}


handle = Faults.entry_point()
