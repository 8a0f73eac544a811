"""A picture in, its label and probabilities out; with `Accept: text/plain` the bare label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BatchHandler, Headers, Request, Settings
from slotwise.worker.images import Recipe


class ImageClassifier(BatchHandler):
    """Serves any engine whose output is one logit a label.

    Weights of dtype "uint8" in model.toml take pixels as they are, [b, h, w, c], and normalise them inside the graph;
    others get normalised float32, [b, c, h, w].
    """

    def load(self, model_dir: Path, settings: Settings) -> Any:
        described = settings.model["input"]
        self.recipe = Recipe.of(described)
        self.floats = described.get("dtype") != "uint8"
        channels = self.recipe.channels
        self.mean = np.float32(described.get("mean") or [0.0] * channels) * 255
        self.std = np.float32(described.get("std") or [1.0] * channels) * 255
        self.labels: list[str] = settings.model.get("labels") or []
        self.top_k: int = settings.model.get("top_k", 5)
        facts = model_dir / "facts.json"
        self.untrained = facts.is_file() and bool(json.loads(facts.read_text("utf-8")).get("untrained"))
        return super().load(model_dir, settings)

    def example(self) -> Any:
        return np.zeros((self.recipe.height, self.recipe.width, self.recipe.channels), np.uint8)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [self.recipe(body)]

    def collate(self, items: list[Any]) -> Any:
        pixels = np.stack(items)  # [b, h, w, c]
        return ((pixels - self.mean) / self.std).transpose(0, 3, 1, 2) if self.floats else pixels

    def encode(self, output: Any, item: Any) -> dict[str, Any]:
        """One row of logits [labels] to its best `top_k` labels."""
        grown = np.exp(output - output.max())
        probabilities = grown / grown.sum()
        best = probabilities.argsort()[::-1][: self.top_k]
        named = {self._label(i): round(float(probabilities[i]), 6) for i in best}
        answer: dict[str, Any] = {"label": next(iter(named)), "probabilities": named}
        return {**answer, "untrained": True} if self.untrained else answer

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        body, content_type = super().respond(request, results)
        if request.headers.get("accept", "").startswith("text/plain"):
            return body["label"], "text/plain; charset=utf-8"
        return body, content_type

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": "untrained: its answers mean nothing"} if self.untrained else {}

    def _label(self, i: int) -> str:
        return self.labels[i] if i < len(self.labels) else str(i)


handle = ImageClassifier.entry_point()
