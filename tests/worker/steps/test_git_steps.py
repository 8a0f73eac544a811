"""GIT decoded step by step, with random joins: each caption is what transformers' own `generate` gives alone.

The weights are random, so captions run to the limit; the demonstration model's are in tests/worker/test_text_streams.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker.engines.git import GitEngine
from slotwise.worker.engines.steps.git import GitStepEngine
from slotwise.worker.padding import Padding
from slotwise.worker.steps.repeatable import objection
from slotwise.worker.steps.sampling import greedy
from slotwise.worker.steps.step_engine import End, Next, StepRow, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream, TurnLimits

for _package in ("torch", "transformers"):
    pytest.importorskip(_package)
MOST, SIDE, WORDS, END = 20, 32, 23, 3
POISONED = 4  # the place of a picture
COLOURS: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3}


@dataclass(frozen=True)
class Picture:
    pixels: Any
    name: int = -1


class Captions:
    """What an author writes beside the engine: greedy. tokens: of each picture, for the test."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def example(self) -> Picture:
        return Picture(np.zeros((SIDE, SIDE, 3), np.uint8))

    def others(self) -> list[Picture]:
        draw = np.random.default_rng(0)
        return [Picture(draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8))]

    def advance(self, state: StepState, output: Any) -> Next | End:
        token = greedy(output)
        if token == END:
            return End()
        self.tokens[state.item.name] = [*state.tokens, token]
        return End() if len(state.tokens) + 1 == MOST else Next(token)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random weights, some of whose captions end before the limit."""
    from slotwise.zoo.transformers_files import ready, save

    ready()
    import torch
    from transformers import GitConfig, GitForCausalLM, GitVisionConfig

    size: dict[str, int] = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    vision = GitVisionConfig(image_size=SIDE, patch_size=8, hidden_size=48, **size).to_dict()
    config = GitConfig(
        vision_config=vision,
        vocab_size=WORDS,
        max_position_embeddings=64,
        hidden_size=32,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=END,
        **size,
    )
    made = tmp_path_factory.mktemp("git")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = GitForCausalLM(config)
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(torch.randn_like(weights) * 0.2)
    save(model, made)
    return made


class PoisonedEngine(GitStepEngine):
    """Cannot bear one of the pictures at its third token, and leaves numbers behind in its slot that are none."""

    poisoned = -1

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        outputs = super().prefill_all(slots, items)
        for slot, item in zip(slots, items, strict=True):
            if item.name == POISONED:
                self.poisoned = slot
                self.keys[:, slot, :, -6:], self.values[:, slot, :, -6:] = float("nan"), float("nan")
            elif slot == self.poisoned:
                self.poisoned = -1
        return outputs

    def step(self, rows: Sequence[StepRow]) -> Any:
        if any(row.slot == self.poisoned and row.position == 2 for row in rows):
            raise RuntimeError("a secret of the engine")
        return super().step(rows)


def stepwise(folder: Path, slots: int) -> GitStepEngine:
    return PoisonedEngine(folder, device="cpu", precision="fp32", threads=1, slots=slots, longest_answer=MOST, **COLOURS)


@pytest.mark.parametrize("padding", ["none", "static"])
def test_with_random_joins_each_caption_is_what_generate_gives(folder: Path, padding: str) -> None:
    draw, noise = random.Random(7), np.random.default_rng(7)
    items = [Picture(noise.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8), i) for i in range(24)]
    reference = GitEngine(folder, device="cpu", precision="fp32", threads=1, max_output_tokens=MOST, **COLOURS)
    alone = [reference(item.pixels[None])[0] for item in items]
    lengths = sorted(map(len, alone))
    assert lengths[0] < MOST == lengths[-1], "some end, some run to the limit"
    author = Captions()
    loop = StepLoop.start(stepwise(folder, 5), author, TurnLimits(1e9, prefill_tokens=40), Padding(padding, 5))
    assert loop.calls.padding.max_rows == 5, "its steps can be repeated, and its slots keep apart"
    assert loop.together, "pictures can be read together"
    ended, waiting = set(), list(enumerate(items))
    while waiting or loop.open:
        for _ in range(min(len(waiting), draw.choice((0, 0, 1, 3)))):
            i, item = waiting.pop(0)
            loop.offer([Stream(i, item)])
        for event in loop.turn():
            assert (event.error is not None) == (event.id == POISONED), event  # type: ignore[union-attr]
            ended.add(event.id)
    assert ended == set(range(len(items)))
    assert author.tokens.pop(POISONED) == alone[POISONED][:3]
    assert [author.tokens.get(i, []) for i in range(len(items)) if i != POISONED] == [
        tokens for i, tokens in enumerate(alone) if i != POISONED
    ]


def test_its_steps_can_be_repeated(folder: Path) -> None:
    assert objection(stepwise(folder, 2), Captions().example()) is None
