"""Answer with several models in one process: the parts that the first one finds are asked of the next, each in its batch.

`[[stages]]` in model.toml names them. The answer is a list, a part each, in the order in which they were found:
`[{"box": [3, 5, 20, 31], "answer": {"label": "7", ...}}, ...]`. A part that fails is an error in its place.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Request, Settings
from slotwise.worker.stages.stage_chain import load_chain


class Stages(BatchHandler):
    """An item is a body with its headers, its request's number and its query: the first stage decodes it."""

    numbers = itertools.count()

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.settings = settings.but(padding="none")  # copies that fill a batch would be asked for as their client's own
        return load_chain(model_dir, settings)

    def example(self) -> Any:
        return None

    def read(self, request: Request) -> list[Any]:
        if request.unclear:
            raise request.unclear
        number = next(self.numbers)
        return [(body, dict(request.headers), number, dict(request.query)) for body in request.bodies]

    def collate(self, items: list[Any]) -> list[Any]:
        return items

    def predict(self, inputs: list[Any]) -> Any:
        return self.engine(inputs, self.predict_until)


handle = Stages.entry_point()
