"""A handler that sets for a request what others would have, too, and answers with what that is then."""

from __future__ import annotations

from typing import Any

from slotwise.worker import TorchServeHandler

DIGITS = [{"x": 1.1234567, "set": digits} for digits in (1, 2, 3)]
SEEDS = [{"x": float(seed), "set": seed} for seed in range(4)]


class Sets(TorchServeHandler):
    """`put` sets what a request wants, and the answer is `seen`."""

    def initialize(self, context: Any) -> None:
        self.scale = 1

    def put(self, wanted: Any) -> None:
        raise NotImplementedError

    def seen(self, data: Any) -> Any:
        raise NotImplementedError

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.put(data[0]["body"]["set"])
        return [row["body"]["x"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [x * self.scale for x in data]

    def postprocess(self, data: Any) -> Any:
        return [self.seen(x) for x in data]
