"""The translation model's handler, whose answers have exactly as many tokens as their request's `max_tokens` says.

The network never ends an answer itself: how long a demonstration model's nonsense would be says nothing. Nor does it say a
token that has no text: a larger network has more words than its vocabulary. Both decodings pay the same for it, and a closed
batch still ends with its longest answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from translator import Row, Translator

from slotwise.worker import End, Next, StepState
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.inputs.text import EOS, UNK

PREFIX = 2  # tokens of the decoder before the answer


class EndsAt:
    """Lets `generate` end each row of a batch where it is to end. lengths: tokens of each row, [b]. words: with a text."""

    def __init__(self, lengths: Sequence[int], words: slice) -> None:
        self.lengths, self.words = lengths, words

    def __call__(self, ids: Any, scores: Any) -> Any:
        """ids: [b, t]; scores: [b, v]."""
        import torch

        ends = torch.tensor(self.lengths) <= ids.shape[1] - PREFIX
        said = torch.full_like(scores, -float("inf"))
        said[:, self.words] = scores[:, self.words]
        said[ends, EOS] = float("inf")
        return said


class ForcedTranslator(Translator):
    def predict(self, inputs: Sequence[Row]) -> Any:
        if isinstance(self.engine, M2M100Engine):  # a build proves CTranslate2's rows, too, which nobody measures here
            self.engine.options["logits_processor"] = [EndsAt([row.most for row in inputs], self.words)]
        return super().predict(inputs)

    def advance(self, state: StepState, output: Any) -> Next | End:
        said = np.full(len(output), -np.inf, np.float32)
        said[self.words] = np.asarray(output)[self.words]
        return super().advance(state, said)

    @cached_property
    def words(self) -> slice:
        """The tokens that have a text."""
        return slice(UNK + 1, len(self.vocabulary.pieces))


handle = ForcedTranslator.entry_point()
