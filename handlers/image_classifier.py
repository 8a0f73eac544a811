"""Classify pictures: a picture in, its label and probabilities out. With `Accept: text/plain` the answer is the bare label.

With the header `x-scores: all` every class's score stands beside the answer. `[options] answer = "mms"` in model.toml makes the
answer the list that Multi Model Server's own handlers give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BatchHandler, Headers, Request, Settings
from slotwise.worker.budget import Cost
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.inputs.uploads import cost_of, each, is_one_of_a_list, items_of
from slotwise.worker.labels import ClassifierAnswers, in_words


class ImageClassifier(BatchHandler):
    """Serves any network whose output is one logit a label.

    Where `input.dtype` in model.toml is "uint8", the network takes pixels as they are, [b, h, w, c], and normalises them
    itself. Otherwise it gets normalised float32, [b, c, h, w].
    """

    def load(self, model_dir: Path, settings: Settings) -> Any:
        spec = settings.model["input"]
        self.recipe = Recipe.of(spec)
        self.floats = spec.get("dtype") != "uint8"
        channels = self.recipe.channels
        self.mean = np.array(spec.get("mean") or [0.0] * channels, np.float32) * 255
        self.std = np.array(spec.get("std") or [1.0] * channels, np.float32) * 255
        self.answers = ClassifierAnswers(self.model)
        facts = model_dir / "facts.json"
        self.untrained = facts.is_file() and bool(json.loads(facts.read_text("utf-8")).get("untrained"))
        return super().load(model_dir, settings)

    def example(self) -> Any:
        return np.zeros((self.recipe.height, self.recipe.width, self.recipe.channels), np.uint8)

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        return cost_of(body, headers, self.recipe.cost)

    def read(self, request: Request) -> list[Any]:
        return each(items_of(request.body, request.headers, getattr(request, "fields", None)), self.recipe)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return each(items_of(body, headers), self.recipe)  # [h, w, c] an item

    def collate(self, items: list[Any]) -> Any:
        pixels = np.stack(items)  # [b, h, w, c]
        return ((pixels - self.mean) / self.std).transpose(0, 3, 1, 2) if self.floats else pixels

    def predict(self, inputs: Any) -> Any:
        return self.answers.rows(super().predict(inputs))

    def encode(self, output: Any, item: Any) -> tuple[Any, Any]:
        answer, row = self.answers.result(output)
        return ({**answer, "untrained": True} if self.untrained and isinstance(answer, dict) else answer), row

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        shown = self.answers.shown(request, results)
        if is_one_of_a_list(request, shown):
            return shown, "application/json"
        return in_words(request, *super().respond(request, shown))

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": "untrained: its answers mean nothing"} if self.untrained else {}


handle = ImageClassifier.entry_point()
