"""Answer rows of a table: JSON or CSV in, a label and its probabilities out, or a value.

`[input.columns]` in model.toml names the columns and what each of them takes; `output` says what the graph's numbers are:
"probabilities", "logits" or "regression". What is wrong with a value costs its row a 422 that names the column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Request, Settings, SlotError
from slotwise.worker.engines import samples
from slotwise.worker.labels import ClassifierAnswers, in_words
from slotwise.worker.tables.columns import Row
from slotwise.worker.tables.table_body import is_list, rows_of
from slotwise.worker.tables.table_engine import load_table


class Tabular(BatchHandler):
    """A row is an item: its numbers and its texts. The engine makes the graph's inputs of all rows of a batch at once."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        engine = load_table(model_dir, settings)
        self.columns, self.answers = engine.columns, ClassifierAnswers(self.model)
        self.first = next(samples.examples(model_dir, self), self.columns.example())
        return engine

    def example(self) -> Any:
        return self.first

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return list(rows_of(body, headers, self.columns))

    def collate(self, items: list[Row]) -> list[Row]:
        return items

    def predict(self, inputs: list[Row]) -> Any:
        return self.answers.rows(self.engine(inputs))

    def encode(self, output: Any, item: Any) -> Any:
        return self.answers.result(output)

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """A list of rows is answered by a list, however many they are; where its only row is wrong, by that error."""
        shown = self.answers.shown(request, results)
        if len(shown) == 1 and not isinstance(shown[0], SlotError) and is_list(request.body, request.headers, self.columns):
            return shown, "application/json"
        return in_words(request, *super().respond(request, shown))


handle = Tabular.entry_point()
