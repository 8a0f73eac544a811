"""Generators around a decoder of transformers: token by token, and with `generate` in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.worker import Settings
from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, together
from tests.worker.idioms.streamed import Streams, no_stream_is_wrong

torch = pytest.importorskip("torch")

PROMPTS = [{"ids": [7 + i, 8 + i % 3, 9], "pieces": 2 + i, "number": i} for i in range(6)]


class Decodes(Streams):
    """A tiny decoder of transformers."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.decoder = tiny.gpt2()

    def example(self) -> Any:
        return PROMPTS[0]


@together(PROMPTS)
class Greedy(Decodes):
    """Decodes token by token with a cache of its own, always the likeliest."""

    def stream(self, item: Any) -> Iterator[Any]:
        cache, ids = tiny.transformers().DynamicCache(config=self.decoder.config), torch.tensor([item["ids"]])
        for _ in range(item["pieces"]):
            with torch.no_grad():
                scores = self.decoder(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]
            yield {"token": int(scores.argmax())}
            ids = scores.argmax().view(1, 1)


class Queue:
    """What `generate` tells of new tokens, as transformers' streamers."""

    def __init__(self) -> None:
        self.tokens: queue.Queue[int | None] = queue.Queue()
        self.prompt = True

    def put(self, ids: Any) -> None:
        if not self.prompt:
            self.tokens.put(int(ids.reshape(-1)[0]))
        self.prompt = False

    def end(self) -> None:
        self.tokens.put(None)


@together(PROMPTS)
class InAThread(Decodes):
    """Lets `generate` run in a thread, and gives what its streamer tells."""

    sample = False

    def stream(self, item: Any) -> Iterator[Any]:
        streamer = Queue()
        given = {"max_new_tokens": item["pieces"], "eos_token_id": None, "do_sample": self.sample, "streamer": streamer}
        thread = threading.Thread(target=self.run, args=(item, given))
        thread.start()
        try:
            while (token := streamer.tokens.get(timeout=60)) is not None:
                yield {"token": token}
        finally:  # else the thread of one that is cancelled draws beside the next stream's
            thread.join()

    def run(self, item: Any, given: dict[str, Any]) -> None:
        ids = torch.tensor([item["ids"]])
        self.decoder.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **given)


@apart(PROMPTS)
class SampledInAThread(InAThread):
    """Seeds torch in the thread in which `generate` samples."""

    sample = True

    def run(self, item: Any, given: dict[str, Any]) -> None:
        torch.manual_seed(item["number"])
        super().run(item, given)


@each_of(__name__)
def test_no_stream_is_wrong(kind: type[Streams]) -> None:
    no_stream_is_wrong(kind)
