"""What the given handlers of texts share: bodies become tokens, and rows of one padded length run together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.engines import samples
from slotwise.worker.engines.pretrained import FOLDER
from slotwise.worker.environment.settings import Settings
from slotwise.worker.handler import BatchHandler
from slotwise.worker.inputs.text import pack
from slotwise.worker.labels import ClassifierAnswers, in_words
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import SlotError
from slotwise.worker.texts.text_body import is_list_of_texts, texts_of
from slotwise.worker.texts.text_engine import load_encoder
from slotwise.worker.texts.tokens import TextTokenizer, Tokens

GROUP_TOKENS = 16_384  # rows times their padded length


class TextHandler(BatchHandler):
    """An item is the tokens of one record. Rows of one padded length run together: no row's shape is its mates' doing."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        options = self.model.get("options", {})
        self.pairs, self.answers = bool(options.get("pairs")), ClassifierAnswers(self.model)
        most, truncate = options["texts"]["most_tokens"], bool(options.get("truncate"))
        self.tokenizer = TextTokenizer.load(model_dir / FOLDER, most, truncate=truncate)
        self.first = next(samples.examples(model_dir, self), None)
        return load_encoder(model_dir, settings)

    def example(self) -> Any:
        return self.first or self.tokenizer(("a", "a") if self.pairs else ("a", None))

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [self.tokens(one) for one in texts_of(body, headers, pairs=self.pairs)]

    def tokens(self, texts: Any) -> Any:
        """The tokens of a record, or its error."""
        if isinstance(texts, SlotError):
            return texts
        try:
            return self.tokenizer(texts)
        except SlotError as error:
            return error

    def groups(self, items: Sequence[Tokens]) -> list[list[int]]:
        widths = [self.tokenizer.width(len(ids)) for ids, _ in items]
        groups = []
        for width in sorted(set(widths)):
            rows = [i for i, other in enumerate(widths) if other == width]
            packed = pack([width] * len(rows), self.max_rows or self.settings.batch_size, GROUP_TOKENS)
            groups += [[rows[i] for i in group] for group in packed]
        return groups

    def collate(self, items: list[Tokens]) -> Any:
        return self.tokenizer.padded(items)

    def predict(self, inputs: Any) -> Any:
        return self.answers.rows(self.engine(inputs))

    def encode(self, output: Any, item: Any) -> Any:
        return self.answers.result(output)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """A list of texts is answered by a list, however many they are; where its only one is wrong, by that error."""
        shown = self.answers.shown(request, results)
        if len(shown) == 1 and not isinstance(shown[0], SlotError) and is_list_of_texts(request.body, request.headers):
            return shown, "application/json"
        return in_words(request, *super().respond(request, shown))
