"""Translate with M2M100: many records a request, many requests a batch, and a pair of languages for each record.

With `decoding = "steps"` each record is a stream: it joins and leaves between two steps, and is sent as it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotwise.worker import BadRequest, End, Headers, Next, Request, Settings, SlotError, StepState, StreamHandler
from slotwise.worker.engines.pretrained import FOLDER, about, suited
from slotwise.worker.engines.steps import m2m100
from slotwise.worker.engines.translation import load_engine
from slotwise.worker.inputs import translation_request as contract
from slotwise.worker.inputs.text import EOS, Vocabulary, pack
from slotwise.worker.streaming.greedy_text import by_steps, max_tokens_of, next_text

DEFAULTS = {"beams": 1, "max_records": 1000, "max_input_tokens": 256, "max_output_tokens": 256, "max_group_tokens": 4096}


@dataclass(frozen=True)
class Row:
    """One record. source: its token ids, empty where nothing has to be translated. target: the id of the target language.

    most: tokens of the answer.
    """

    id: contract.Id
    text: str
    source: list[int]
    target: int
    most: int


class Translator(StreamHandler):
    max_rows = 64

    def load(self, model_dir: Path, settings: Settings) -> Any:
        options = {**DEFAULTS, **settings.model.get("options", {})}
        self.max_records, self.max_input_tokens = options["max_records"], options["max_input_tokens"]
        self.max_group_tokens, self.max_output_tokens = options["max_group_tokens"], options["max_output_tokens"]
        self.streams, self.beams = by_steps(options), options["beams"]
        facts = about(model_dir)
        self.settings = settings = suited(settings, facts)
        self.note = facts["note"]
        self.vocabulary = Vocabulary.load(model_dir / FOLDER, facts["languages"])
        lengths = {"beams": self.beams, "max_output_tokens": self.max_output_tokens}
        if self.streams:
            return m2m100.load(model_dir, settings, max_input_tokens=self.max_input_tokens, **lengths)
        return load_engine(model_dir, settings, **lengths)

    def example(self) -> Row:
        first, second = list(self.vocabulary.languages)[:2]
        return self._row({"id": None, "text": "Good morning."}, first, second)

    def read(self, request: Request) -> list[Any]:
        most = max_tokens_of(request.query, self.max_output_tokens)
        if self.beams > 1 and most < self.max_output_tokens:
            raise BadRequest("max_tokens is for greedy answers, and this model looks for the best of several")
        return [replace(item, most=most) if isinstance(item, Row) else item for item in super().read(request)]

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        payload = contract.read(body, self.vocabulary.languages, self.max_records)
        return contract.each(payload.records, lambda record: self._row(record, payload.source, payload.target))

    def groups(self, items: Sequence[Row]) -> list[list[int]]:
        if self.streams:
            return super().groups(items)
        return pack([len(row.source) for row in items], self.max_rows or len(items), self.max_group_tokens)

    def collate(self, items: list[Row]) -> list[Row]:
        return items

    def predict(self, inputs: Sequence[Row]) -> Any:
        if self.streams:
            return super().predict(inputs)
        foreign = [row for row in inputs if row.source]
        translated = iter(self.engine([r.source for r in foreign], [r.target for r in foreign]) if foreign else [])
        return [self.vocabulary.decode(next(translated)[: row.most]) if row.source else row.text for row in inputs]

    def advance(self, state: StepState, output: Any) -> Next | End:
        if not state.item.source:
            return End(state.item.text or None)
        words = self.vocabulary
        return next_text(state, output, EOS, state.item.most, words.decode, added=words.added)

    def encode(self, output: Any, item: Row) -> dict[str, Any]:
        return {"id": item.id, "text": super().encode(output, item)}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return contract.answer(request.body, results, request.more, self._records), "application/json"

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": self.note} if self.note else {}

    def _records(self, body: bytes) -> list[Any]:
        """The records of one body; of one that was refused as a whole its one error."""
        try:
            return contract.read(body, self.vocabulary.languages, self.max_records).records
        except SlotError:
            return [None]

    def _row(self, record: Any, source: str, target: str) -> Row:
        id_, text = contract.text_of(record)
        tokens = self.vocabulary.encode(text, source, self.max_input_tokens)
        as_it_is = not tokens or source == target  # an empty text, or one that is in the target language
        return Row(
            id_, text if tokens else "", [] if as_it_is else tokens, self.vocabulary.languages[target], self.max_output_tokens
        )


handle = Translator.entry_point()
