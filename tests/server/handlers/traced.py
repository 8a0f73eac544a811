"""A model that says which version of it read which text, and does to its worker what the text begins with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings


class Traced(BatchHandler):
    """A body is a text: `bad` is refused, `boom` fails its batch, `slow` takes 100 ms, `kill` ends the worker."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.version = settings.model["version"]
        return self.say

    def example(self) -> Any:
        return "an example"

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        if body.startswith(b"bad"):
            raise BadRequest("a bad text")
        return [body.decode()]

    def collate(self, items: list[Any]) -> Any:
        return items

    def say(self, texts: list[str]) -> list[str]:
        """The texts, after what they ask for."""
        begins = {text.partition(" ")[0] for text in texts}
        if "kill" in begins:
            os._exit(3)
        if "slow" in begins:
            time.sleep(0.1)
        if "boom" in begins:
            raise RuntimeError("boom")
        return texts

    def encode(self, output: Any, item: Any) -> Any:
        return {"said": output, "version": self.version}


handle = Traced.entry_point()
