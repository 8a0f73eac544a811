"""A classifier of texts with a tokenizer of transformers, as most are written."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker import TorchServeHandler
from tests.worker.idioms import tiny

torch = pytest.importorskip("torch")


class Classifier(TorchServeHandler):
    """Tokenizes one request after the other, and gives a label with its score."""

    def initialize(self, context: Any) -> None:
        self.manifest, self.device = context.manifest, torch.device("cpu")
        self.tokenizer, self.model = tiny.tokenizer(), tiny.bert()
        self.model.to(self.device)
        self.mapping = {"0": "negative", "1": "positive"}
        self.initialized = True

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        texts = [(row.get("data") or row.get("body"))["text"] for row in data]  # type: ignore[index]
        return self.tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.model(**data).logits

    def postprocess(self, data: Any) -> Any:
        rows = torch.softmax(data, dim=-1)
        return [{"label": self.mapping[str(int(row.argmax()))], "score": float(row.max())} for row in rows]
