"""Find things in pictures: a picture in, boxes out, best first: `[{"box": [12.0, 30.5, 90.0, 108.2], "label": "cat", ...}]`.

A box is left, top, right, bottom in the pixels of the picture as it was sent, upright. What the graph's numbers are stands in
`[options]` of model.toml; boxes that a better one of their label covers are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slotwise.worker import BatchHandler, Headers, Request, Settings
from slotwise.worker.budget import Cost
from slotwise.worker.inputs.images import Recipe, cost, decode_rgb
from slotwise.worker.inputs.uploads import cost_of, each, is_one_of_a_list, items_of
from slotwise.worker.tensors.boxes import BoxRules, found
from slotwise.worker.tensors.named_engine import load_named


class Detector(BatchHandler):
    """An item is the network's picture [h, w, c], and the size of the one that was sent: squeezed, so boxes can go back."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        spec, options = settings.model["input"], settings.model["options"]
        self.recipe = Recipe.of(spec)
        self.rules = BoxRules.of(options, settings.model["output"])
        self.boxes, self.scores = options["boxes"], options["scores"]
        self.labels = settings.model["labels"]
        (given,) = options["tensors"]["inputs"]
        self.given, self.floats = given["name"], spec.get("dtype") != "uint8"
        self.mean = np.array(spec.get("mean") or [0.0] * self.recipe.channels, np.float32) * 255
        self.std = np.array(spec.get("std") or [1.0] * self.recipe.channels, np.float32) * 255
        return load_named(model_dir, settings)

    def example(self) -> Any:
        side = self.recipe.width, self.recipe.height
        return np.zeros((self.recipe.height, self.recipe.width, self.recipe.channels), np.uint8), side

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        return cost_of(body, headers, self.whole_cost)

    def read(self, request: Request) -> list[Any]:
        return each(items_of(request.body, request.headers, getattr(request, "fields", None)), self.squeezed)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return each(items_of(body, headers), self.squeezed)

    def whole_cost(self, file: bytes, size: int | None = None) -> Cost | None:
        """What decoding a whole picture takes: a smaller one would have another size to map boxes to."""
        return cost(file, max_pixels=self.recipe.max_pixels, mode="RGB", size=size)

    def squeezed(self, file: bytes) -> Any:
        """A picture as the network takes it, uint8 [h, w, c], and its own width and height."""
        whole = Image.fromarray(decode_rgb(file, max_pixels=self.recipe.max_pixels)).convert(self.recipe.mode)
        shape = self.recipe.height, self.recipe.width, self.recipe.channels
        return np.asarray(self.recipe.fit(whole)).reshape(shape), whole.size

    def collate(self, items: list[Any]) -> Any:
        pixels = np.stack([picture for picture, _ in items])  # [b, h, w, c]
        if not self.floats:
            return {self.given: pixels}
        return {self.given: np.ascontiguousarray(((pixels - self.mean) / self.std).transpose(0, 3, 1, 2), np.float32)}

    def encode(self, output: Any, item: Any) -> Any:
        side = self.recipe.width, self.recipe.height
        results = found(output[self.boxes], output[self.scores], self.rules, side, item[1])
        return [
            {"box": [round(number, 2) for number in box], "label": self.labels[number], "score": round(score, 6)}
            for box, number, score in results
        ]

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        if is_one_of_a_list(request, results):
            return results, "application/json"
        return super().respond(request, results)


handle = Detector.entry_point()
