"""Translation with M2M100: many records a request, many requests a batch, every record its own pair of languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Request, Settings, SlotError
from slotwise.worker import records as contract
from slotwise.worker.engines.translation import about, load_engine
from slotwise.worker.text import Vocabulary, pack


@dataclass(frozen=True)
class Row:
    """One record. source: its tokens, none where the answer is known; target: the language's token."""

    id: contract.Id
    text: str
    source: list[int]
    target: int


class Translator(BatchHandler):
    max_rows = 64

    def load(self, model_dir: Path, settings: Settings) -> Any:
        options = settings.model.get("options", {})
        self.max_records = options.get("max_records", 1000)
        self.max_input_tokens = options.get("max_input_tokens", 256)
        self.max_group_tokens = options.get("max_group_tokens", 4096)
        facts = about(model_dir)
        self.note = facts["note"]
        self.vocabulary = Vocabulary.load(model_dir / "model", facts["languages"])
        beams, length = options.get("beams", 1), options.get("max_output_tokens", 256)
        return load_engine(model_dir, settings, beams=beams, max_output_tokens=length)

    def example(self) -> Row:
        first, second = list(self.vocabulary.languages)[:2]
        return self._row({"id": None, "text": "Good morning."}, first, second)

    def decode(self, body: bytes, headers: Headers) -> list[Row | SlotError]:
        payload = contract.read(body, self.vocabulary.languages, self.max_records)
        rows: list[Row | SlotError] = []
        for record in payload.records:
            try:
                rows.append(self._row(record, payload.source, payload.target))
            except SlotError as error:
                rows.append(error)
        return rows

    def groups(self, items: Sequence[Row]) -> list[list[int]]:
        return pack([len(row.source) for row in items], self.max_rows or len(items), self.max_group_tokens)

    def collate(self, items: list[Row]) -> list[Row]:
        return items

    def predict(self, inputs: list[Row]) -> list[str]:
        asked = [row for row in inputs if row.source]
        made = iter(self.engine([row.source for row in asked], [row.target for row in asked]) if asked else [])
        return [self.vocabulary.decode(next(made)) if row.source else row.text for row in inputs]

    def encode(self, output: str, item: Row) -> dict[str, Any]:
        return {"id": item.id, "text": output}

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        return contract.answer(request.body, results), "application/json"

    def response_headers(self) -> dict[str, str]:
        return {"x-model-note": self.note} if self.note else {}

    def _row(self, record: Any, source: str, target: str) -> Row:
        id_, text = contract.text_of(record)
        tokens = self.vocabulary.encode(text, source, self.max_input_tokens)
        known = not tokens or source == target  # nothing to say, or nothing to translate
        return Row(id_, text if tokens else "", [] if known else tokens, self.vocabulary.languages[target])


handle = Translator.entry_point()
