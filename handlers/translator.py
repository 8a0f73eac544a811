"""Translate with M2M100: many records a request, many requests a batch, and a pair of languages for each record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Request, Settings
from slotwise.worker.engines.pretrained import FOLDER, about, suited
from slotwise.worker.engines.translation import load_engine
from slotwise.worker.inputs import translation_request as contract
from slotwise.worker.inputs.text import Vocabulary, pack

DEFAULTS = {"beams": 1, "max_records": 1000, "max_input_tokens": 256, "max_output_tokens": 256, "max_group_tokens": 4096}


@dataclass(frozen=True)
class Row:
    """One record. source: its token ids, empty where nothing has to be translated. target: the id of the target language."""

    id: contract.Id
    text: str
    source: list[int]
    target: int


class Translator(BatchHandler):
    max_rows = 64

    def load(self, model_dir: Path, settings: Settings) -> Any:
        options = {**DEFAULTS, **settings.model.get("options", {})}
        self.max_records, self.max_input_tokens = options["max_records"], options["max_input_tokens"]
        self.max_group_tokens = options["max_group_tokens"]
        facts = about(model_dir)
        self.settings = settings = suited(settings, facts)
        self.note = facts["note"]
        self.vocabulary = Vocabulary.load(model_dir / FOLDER, facts["languages"])
        return load_engine(model_dir, settings, beams=options["beams"], max_output_tokens=options["max_output_tokens"])

    def example(self) -> Row:
        first, second = list(self.vocabulary.languages)[:2]
        return self._row({"id": None, "text": "Good morning."}, first, second)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        payload = contract.read(body, self.vocabulary.languages, self.max_records)
        return contract.each(payload.records, lambda record: self._row(record, payload.source, payload.target))

    def groups(self, items: Sequence[Row]) -> list[list[int]]:
        return pack([len(row.source) for row in items], self.max_rows or len(items), self.max_group_tokens)

    def collate(self, items: list[Row]) -> list[Row]:
        return items

    def predict(self, inputs: list[Row]) -> list[str]:
        foreign = [row for row in inputs if row.source]
        translated = iter(self.engine([r.source for r in foreign], [r.target for r in foreign]) if foreign else [])
        return [self.vocabulary.decode(next(translated)) if row.source else row.text for row in inputs]

    def encode(self, output: str, item: Row) -> dict[str, Any]:
        return {"id": item.id, "text": output}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return contract.answer(request.body, results), "application/json"

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": self.note} if self.note else {}

    def _row(self, record: Any, source: str, target: str) -> Row:
        id_, text = contract.text_of(record)
        tokens = self.vocabulary.encode(text, source, self.max_input_tokens)
        as_it_is = not tokens or source == target  # an empty text, or one that is in the target language
        return Row(id_, text if tokens else "", [] if as_it_is else tokens, self.vocabulary.languages[target])


handle = Translator.entry_point()
