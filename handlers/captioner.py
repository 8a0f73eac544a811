"""Caption pictures with GIT: a picture in, one sentence out. With `Accept: text/plain` the answer is the bare sentence.

With `decoding = "steps"` each picture is a stream: it joins and leaves between two steps, and its caption is sent as it grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import End, Headers, Next, Request, Settings, StepState, StreamHandler
from slotwise.worker.budget import Cost
from slotwise.worker.engines import git
from slotwise.worker.engines.pretrained import FOLDER, about, suited
from slotwise.worker.engines.steps import git as git_steps
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.inputs.uploads import cost_of, each, is_one_of_a_list, items_of
from slotwise.worker.streaming.greedy_text import by_steps, max_tokens_of, next_text


@dataclass(frozen=True)
class Picture:
    """pixels: uint8 [h, w, 3]. most: tokens of its caption."""

    pixels: Any
    most: int


class Captioner(StreamHandler):
    """Decodes and cuts pictures one by one in the pool of threads; the engine normalises a whole batch of pixels at once."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        facts = about(model_dir)
        self.settings = settings = suited(settings, facts)
        self.note = facts["note"]
        self.recipe = Recipe.of(facts["image"])
        self.words = git.load_words(model_dir / FOLDER)
        options = settings.model.get("options", {})
        self.most, self.streams = options.get("max_output_tokens", 48), by_steps(options)
        if self.streams:
            return git_steps.load(model_dir, settings, max_output_tokens=self.most)
        return git.load(model_dir, settings, self, max_output_tokens=self.most)

    def example(self) -> Picture:
        return Picture(np.zeros((self.recipe.height, self.recipe.width, 3), np.uint8), self.most)

    def cost(self, body: bytes, headers: Headers) -> Cost | None:
        return cost_of(body, headers, self.recipe.cost)

    def read(self, request: Request) -> list[Any]:
        most = max_tokens_of(request.query, self.most)
        items = items_of(request.body, request.headers, getattr(request, "fields", None))
        return each(items, lambda file: Picture(self.recipe(file), most))

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return each(items_of(body, headers), lambda file: Picture(self.recipe(file), self.most))

    def collate(self, items: list[Picture]) -> Any:
        return items if self.streams else np.stack([item.pixels for item in items])  # [b, h, w, 3]

    def advance(self, state: StepState, output: Any) -> Next | End:
        held_words = 2 if self.words.clean_up_tokenization_spaces else 0  # it also draws "is n ' t" together, to "isn't"
        return next_text(state, output, self.engine.last, state.item.most, self._text, held_words)

    def encode(self, output: Any, item: Picture) -> dict[str, str]:
        return {"caption": super().encode(output, item) if self.streams else self._text(output[: item.most])}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        if is_one_of_a_list(request, results):
            return results, "application/json"
        body, content_type = super().respond(request, results)
        if request.headers.get("accept", "").startswith("text/plain") and isinstance(body, dict):
            return body["caption"], "text/plain; charset=utf-8"
        return body, content_type

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": self.note} if self.note else {}

    @property
    def _text(self) -> Any:
        return partial(self.words.decode, skip_special_tokens=True)


handle = Captioner.entry_point()
