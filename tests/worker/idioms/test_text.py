"""Handlers with a tokenizer and an encoder of transformers, as most texts are classified, embedded and searched."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker import TorchServeHandler
from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.idioms.classifier import Classifier

torch = pytest.importorskip("torch")

TEXTS = [{"text": text} for text in tiny.TEXTS]
BROKEN = {"words": "no text"}
SIDES = [{"text": text, "side": ("left", "right")[i % 2]} for i, text in enumerate(tiny.TEXTS)]


@together([*TEXTS, BROKEN])
class AClassifier(Classifier):
    """Each request's text is tokenized by itself; those of one length run together."""


@together(TEXTS)
class EvaluatedEachTime(Classifier):
    """Calls eval and to(device) at each request, and runs in inference mode."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.model.eval()
        return super().preprocess(data).to(self.device)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.model.to(self.device)
        with torch.inference_mode():
            return self.model(**data).logits


@together(TEXTS)
class AsTheExampleOfTorchServe(Classifier):
    """Pads each text to one length, puts the rows together, and gives two tensors: its Transformer_handler_generalized.py."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        ids_of_all = masks_of_all = None
        for row in data:
            text = row["body"]["text"]
            found = self.tokenizer(text, max_length=16, padding="max_length", truncation=True, return_tensors="pt")
            ids, mask = found["input_ids"].to(self.device), found["attention_mask"].to(self.device)
            ids_of_all = ids if ids_of_all is None else torch.cat((ids_of_all, ids), 0)
            masks_of_all = mask if masks_of_all is None else torch.cat((masks_of_all, mask), 0)
        return ids_of_all, masks_of_all

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        ids, mask = data
        found = []
        scores = self.model(ids, attention_mask=mask)[0].detach()
        for i in range(scores.shape[0]):
            label = scores[i].unsqueeze(0).argmax(1).item()
            found.append(f"{self.mapping[str(label)]} {float(scores[i].max()):.3f}")
        return found

    def postprocess(self, data: Any) -> Any:
        return data


@together(TEXTS)
class AnEmbedder(Classifier):
    """Tokenizes all texts at once in inference, and takes the mean of what is no padding."""

    def initialize(self, context: Any) -> None:
        self.tokenizer, self.model = tiny.tokenizer(), tiny.bert("BertModel")

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [row["body"]["text"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.tokenizer(data, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            outputs = self.model(**given).last_hidden_state
        mask = given["attention_mask"].unsqueeze(-1).expand(outputs.size()).float()
        means = torch.sum(outputs * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
        return torch.nn.functional.normalize(means, p=2, dim=1)

    def postprocess(self, data: Any) -> Any:
        return data.tolist()


@together(TEXTS)
class AnEmbedderThatRemembers(AnEmbedder):
    """Keeps what a text gave, by the text itself."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.known: dict[str, Any] = {}

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        if new := [text for text in data if text not in self.known]:
            self.known.update(zip(new, super().inference(new), strict=True))
        return torch.stack([self.known[text] for text in data])


@apart(TEXTS)
class AnEmbedderWithoutAMask(AnEmbedder):
    """Tokenizes all texts at once, and does not tell the model what is padding."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        ids = self.tokenizer(data, padding=True, truncation=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return self.model(ids).last_hidden_state.mean(1)


@together([{"question": "what is the name ?", "context": text} for text in tiny.TEXTS])
class Answers(TorchServeHandler):
    """Finds the words that answer a question."""

    def initialize(self, context: Any) -> None:
        self.tokenizer, self.model = tiny.tokenizer(), tiny.bert("BertForQuestionAnswering")

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        pairs = [(row["body"]["question"], row["body"]["context"]) for row in data]
        found = self.tokenizer(pairs, max_length=24, padding="max_length", return_tensors="pt")
        return found["input_ids"], found["attention_mask"]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        ids, mask = data
        with torch.no_grad():
            found = self.model(ids, attention_mask=mask)
        spans = zip(ids.tolist(), found.start_logits.argmax(1), found.end_logits.argmax(1), strict=True)
        return [self.tokenizer.convert_ids_to_tokens(row[start : end + 1]) for row, start, end in spans]

    def postprocess(self, data: Any) -> Any:
        return [{"answer": self.tokenizer.convert_tokens_to_string(tokens), "words": len(tokens)} for tokens in data]


@apart(TEXTS)
class OffsetsOnSelf(TorchServeHandler):
    """Keeps the texts and the places of their words on itself, to name what it found."""

    def initialize(self, context: Any) -> None:
        self.tokenizer, self.model = tiny.tokenizer(), tiny.bert("BertForTokenClassification", num_labels=3)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.texts = [row["body"]["text"] for row in data]
        found = self.tokenizer(self.texts, padding=True, return_tensors="pt", return_offsets_mapping=True)
        self.offsets = found.pop("offset_mapping")
        return found

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model(**data).logits.detach()

    def postprocess(self, data: Any) -> Any:
        rows = zip(self.texts, self.offsets, data.argmax(-1).tolist(), strict=True)
        return [
            [(text[start:end], label) for (start, end), label in zip(places.tolist(), labels, strict=True) if end > start]
            for text, places, labels in rows
        ]


@together(TEXTS)
class OffsetsWithTheRow(TorchServeHandler):
    """Hands the text and the places of its words on with the row."""

    def initialize(self, context: Any) -> None:
        self.tokenizer, self.model = tiny.tokenizer(), tiny.bert("BertForTokenClassification", num_labels=3)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        texts = [row["body"]["text"] for row in data]
        return {**self.tokenizer(texts, padding=True, return_tensors="pt", return_offsets_mapping=True), "text": texts}

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        found = self.model(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits.detach()
        return {"labels": found.argmax(-1), "offsets": data["offset_mapping"], "text": data["text"]}

    def postprocess(self, data: Any) -> Any:
        return [
            [
                (text[start:end], label)
                for (start, end), label in zip(places.tolist(), labels.tolist(), strict=True)
                if end > start
            ]
            for text, places, labels in zip(data["text"], data["offsets"], data["labels"], strict=True)
        ]


@apart(SIDES)
class ThePaddingSide(Classifier):
    """Tells the tokenizer on which side to pad, and tokenizes in inference."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.tokenizer.padding_side = data[0]["body"]["side"]
        return [row["body"]["text"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.tokenizer(data, padding="max_length", max_length=12, return_tensors="pt")
        return self.model(given["input_ids"]).logits.detach()


@apart([{"text": text, "hidden": bool(i % 2)} for i, text in enumerate(tiny.TEXTS)])
class TheModelsConfiguration(Classifier):
    """Tells the model's configuration what this request wants to see."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.model.config.output_hidden_states = data[0]["body"]["hidden"]
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        found = self.model(**data)
        return found.logits.detach() + 1000 * len(found.hidden_states or ())

    def postprocess(self, data: Any) -> Any:
        return data.tolist()


@together([{"text": text, "x-lang": ("en", "de")[i % 2]} for i, text in enumerate(tiny.TEXTS)])
class TheHeaderOfEach(TorchServeHandler):
    """Asks the context for the request's language in each method."""

    def initialize(self, context: Any) -> None:
        self.suffix = "!"

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [(row["body"]["text"], self.context.get_request_header(i, "x-lang")) for i, row in enumerate(data)]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [f"{text} {lang} {self.context.get_request_header(i, 'x-lang')}" for i, (text, lang) in enumerate(data)]

    def postprocess(self, data: Any) -> Any:
        return [f"{data[0]} {self.context.get_request_header(0, 'x-lang')}{self.suffix}"]


@apart([{"text": text, "x-lang": ("en", "de")[i % 2]} for i, text in enumerate(tiny.TEXTS)])
class TheHeaderOnSelf(TheHeaderOfEach):
    """Keeps the request's language on itself."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.lang = self.context.get_request_header(0, "x-lang")
        return [row["body"]["text"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [f"{text} {self.lang}" for text in data]


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[TorchServeHandler], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
