"""The translation model's handler with a real M2M100's times: a call of the model then sleeps as long as that one would take.

The original translated one record of its example in 0.41 s and 16 of them in one batch in 0.62 s, with M2M100 418M on its GPU.
A decoding step makes the next token of every row, so a call takes as many steps as its longest output has tokens, and a step
takes a fixed time and a little more for each row:

    steps * (step_s + 1 * row_s) = 0.41 s        steps * (step_s + 16 * row_s) = 0.62 s

That rows go on costing as much from 16 to 64 is assumed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from translator import Row, Translator

from slotwise.worker import Request, Settings
from slotwise.worker.slot_errors import SlotError

EXAMPLE, LANGUAGE = "Life is like a box of chocolates.", "en"
ONE_S, SIXTEEN_S = 0.41, 0.62  # the original's averages at two requests a second
ROWS_S = (SIXTEEN_S - ONE_S) / 15  # steps * row_s of the example: 0.014 s
STEPS_S = ONE_S - ROWS_S  # steps * step_s of the example: 0.396 s


class SlowTranslator(Translator):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        engine = super().load(model_dir, settings)
        example_steps = self.steps(EXAMPLE)
        self.step_s, self.row_s = STEPS_S / example_steps, ROWS_S / example_steps
        return engine

    def steps(self, text: str) -> int:
        """The decoding steps of an output: its language, its tokens, its end."""
        return len(self.vocabulary.encode(text, LANGUAGE))

    def predict(self, inputs: list[Row]) -> list[str]:  # type: ignore[override]
        outputs: list[str] = super().predict(inputs)
        time.sleep(max(map(self.steps, outputs)) * (self.step_s + len(inputs) * self.row_s))
        return outputs

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """A request with a record that was not translated is no answer: who counts sees statuses alone."""
        for result in results:
            if isinstance(result, SlotError):
                raise result
        return super().respond(request, results)


handle = SlowTranslator.entry_point()
