"""The translation model's handler, whose answers have exactly as many tokens as their request's `max_tokens` says.

The network never ends an answer itself: how long a demonstration model's nonsense would be says nothing. Both decodings pay
the same for it, and a closed batch still ends with its longest answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from translator import Row, Translator

from slotwise.worker import End, Next, StepState
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.inputs.text import EOS

PREFIX = 2  # tokens of the decoder before the answer


class EndsAt:
    """Lets `generate` end each row of a batch where it is to end. lengths: tokens of each row, [b]."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __call__(self, ids: Any, scores: Any) -> Any:
        """ids: [b, t]; scores: [b, v]."""
        import torch

        ends = torch.tensor(self.lengths) <= ids.shape[1] - PREFIX
        scores[:, EOS] = -float("inf")
        scores[ends, EOS] = float("inf")
        return scores


class ForcedTranslator(Translator):
    def predict(self, inputs: Sequence[Row]) -> Any:
        if isinstance(self.engine, M2M100Engine):  # a build proves CTranslate2's rows, too, which nobody measures here
            self.engine.options["logits_processor"] = [EndsAt([row.most for row in inputs])]
        return super().predict(inputs)

    def advance(self, state: StepState, output: Any) -> Next | End:
        endless = np.array(output)
        endless[EOS] = -np.inf
        return super().advance(state, endless)


handle = ForcedTranslator.entry_point()
