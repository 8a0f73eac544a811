"""Answer with several models in one process: the parts that the first one finds are asked of the next, each in its batch.

`[[stages]]` in model.toml names them. The answer is a list, a part each, in the order in which they were found:
`[{"box": [3, 5, 20, 31], "answer": {"label": "7", ...}}, ...]`. A part that fails is an error in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Settings
from slotwise.worker.stages.stage_chain import load_chain


class Stages(BatchHandler):
    """An item is a body with its headers: the first stage decodes it."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return load_chain(model_dir, settings)

    def example(self) -> Any:
        return None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [(body, dict(headers))]

    def collate(self, items: list[Any]) -> list[Any]:
        return items

    def predict(self, inputs: list[Any]) -> Any:
        return self.engine(inputs, self.predict_until)


handle = Stages.entry_point()
