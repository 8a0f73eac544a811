"""Handlers around a `pipeline` of transformers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slotwise.worker import TorchServeHandler
from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

TEXTS = [{"text": text} for text in tiny.TEXTS]
MASKED = [{"text": text.replace("the", "[MASK]", 1)} for text in tiny.TEXTS if "the" in text]
COUNTS = [{"text": text, "labels": i % 3 + 1} for i, text in enumerate(tiny.TEXTS)]


class Piped(TorchServeHandler):
    """Gives all texts of a batch to a pipeline, and its answers as they are."""

    def initialize(self, context: Any) -> None:
        self.pipe = tiny.transformers().pipeline(
            "text-classification", model=tiny.bert(), tokenizer=tiny.tokenizer(), device=-1
        )

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [row["body"]["text"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.pipe(data)

    def postprocess(self, data: Any) -> Any:
        return data


@together(TEXTS)
class Classifies(Piped):
    """Text classification, one text after the other within the pipeline."""


@together(TEXTS)
class ClassifiesInBatches(Piped):
    """Text classification with batch_size, all labels of each."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.pipe(data, batch_size=len(data), truncation=True, top_k=None)


@together(TEXTS)
class CleansByTheTokenizer(Piped):
    """Asks the pipeline's tokenizer in preprocess, and keeps when that began."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.began = time.time()
        ids = [self.pipe.tokenizer(row["body"]["text"])["input_ids"] for row in data]
        return [self.pipe.tokenizer.decode(one, skip_special_tokens=True) for one in ids]


@together(MASKED)
class FillsMasks(Piped):
    """The two likeliest words for a mask; the pipeline answers an only text without a list around it."""

    def initialize(self, context: Any) -> None:
        self.pipe = tiny.transformers().pipeline("fill-mask", model=tiny.bert("BertForMaskedLM"), tokenizer=tiny.tokenizer())

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        found = self.pipe(data, top_k=2)
        return found if len(data) > 1 else [found]


@together(TEXTS)
class NamesTokens(Piped):
    """Token classification: a list of words for each text."""

    def initialize(self, context: Any) -> None:
        model = tiny.bert("BertForTokenClassification", num_labels=3)
        self.pipe = tiny.transformers().pipeline(
            "token-classification", model=model, tokenizer=tiny.tokenizer(), aggregation_strategy="simple"
        )

    def postprocess(self, data: Any) -> Any:
        return [[{"word": one["word"], "score": float(one["score"])} for one in found] for found in data]


@together(TEXTS)
class Embeds(Piped):
    """Feature extraction: nested lists of another length for each text."""

    def initialize(self, context: Any) -> None:
        self.pipe = tiny.transformers().pipeline("feature-extraction", model=tiny.bert("BertModel"), tokenizer=tiny.tokenizer())

    def postprocess(self, data: Any) -> Any:
        return [np.array(found)[0].mean(0).tolist() for found in data]


@together(TEXTS)
class GoesOn(Piped):
    """Text generation, several texts at once."""

    def initialize(self, context: Any) -> None:
        self.pipe = tiny.transformers().pipeline(
            "text-generation", model=tiny.gpt2(), tokenizer=tiny.tokenizer(padding_side="left")
        )

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.pipe(data, max_new_tokens=5, do_sample=False, batch_size=8)

    def postprocess(self, data: Any) -> Any:
        return [found[0]["generated_text"] for found in data]


class Counted(Piped):
    """A classifier of four labels."""

    def initialize(self, context: Any) -> None:
        self.pipe = tiny.transformers().pipeline(
            "text-classification", model=tiny.bert(num_labels=4), tokenizer=tiny.tokenizer()
        )


@together(COUNTS)
class OptionsWithTheRow(Counted):
    """Hands what a request wants on with its text."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [(row["body"]["text"], row["body"]["labels"]) for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [self.pipe(text, top_k=labels) for text, labels in data]


@apart(COUNTS)
class OptionsOnSelf(Counted):
    """Keeps what a request wants on itself."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.labels = data[0]["body"]["labels"]
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [self.pipe(text, top_k=self.labels) for text in data]


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[TorchServeHandler], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
