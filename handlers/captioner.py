"""Caption pictures with GIT: a picture in, one sentence out. With `Accept: text/plain` the answer is the bare sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BatchHandler, Headers, Request, Settings
from slotwise.worker.budget import Cost
from slotwise.worker.engines import git
from slotwise.worker.engines.pretrained import FOLDER, about, suited
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.inputs.uploads import cost_of, each, items_of


class Captioner(BatchHandler):
    """Decodes and cuts pictures one by one in the pool of threads; the engine normalises a whole batch of pixels at once."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        facts = about(model_dir)
        self.settings = settings = suited(settings, facts)
        self.note = facts["note"]
        self.recipe = Recipe.of(facts["image"])
        self.words = git.load_words(model_dir / FOLDER)
        tokens = settings.model.get("options", {}).get("max_output_tokens", 48)
        return git.load(model_dir, settings, self, max_output_tokens=tokens)

    def example(self) -> Any:
        return np.zeros((self.recipe.height, self.recipe.width, 3), np.uint8)

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        return cost_of(body, headers, self.recipe.cost)

    def read(self, request: Request) -> list[Any]:
        return each(items_of(request.body, request.headers, getattr(request, "fields", None)), self.recipe)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return each(items_of(body, headers), self.recipe)  # [h, w, 3] an item

    def encode(self, output: list[int], item: Any) -> dict[str, str]:
        return {"caption": self.words.decode(output, skip_special_tokens=True)}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        body, content_type = super().respond(request, results)
        if request.headers.get("accept", "").startswith("text/plain") and isinstance(body, dict):
            return body["caption"], "text/plain; charset=utf-8"
        return body, content_type

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": self.note} if self.note else {}


handle = Captioner.entry_point()
