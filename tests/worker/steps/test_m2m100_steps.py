"""M2M100 decoded step by step, with random joins: each translation is what transformers' own `generate` gives alone.

The weights are the demonstration model's, and random ones of the same shape, whose answers run to the limit.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.engines.steps.m2m100 import M2M100StepEngine
from slotwise.worker.inputs.text import EOS, Vocabulary
from slotwise.worker.padding import Padding
from slotwise.worker.steps.repeatable import objection
from slotwise.worker.steps.sampling import greedy
from slotwise.worker.steps.step_engine import End, Next, StepRow, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Stream, StreamPiece, TurnLimits
from tests.worker.serving import Served
from tests.worker.texts import LANGUAGES, SENTENCES, odd_texts

pytestmark = pytest.mark.long  # a minute

MOST = 48
POISONED = 6  # the place of a sentence


@dataclass(frozen=True)
class Sentence:
    source: tuple[int, ...]
    target: int
    name: int = -1


class Translation:
    """What an author writes beside the engine: greedy, and text as it comes. tokens: of each sentence, for the test."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.tokens: dict[int, list[int]] = {}

    def example(self) -> Sentence:
        return Sentence(tuple(self.vocabulary.encode("Good morning.", "en")), self.vocabulary.languages["fr"])

    def others(self) -> list[Sentence]:
        return [
            Sentence(
                tuple(self.vocabulary.encode("The soup is cold, and so is the tea.", "en")), self.vocabulary.languages["de"]
            )
        ]

    def advance(self, state: StepState, output: Any) -> Next | End:
        token = greedy(output)
        if token == EOS:
            return End()
        self.tokens[state.item.name] = [*state.tokens, token]
        text, sent = self.vocabulary.decode([*state.tokens, token]), state.own or ""
        state.own = text
        piece = text.removeprefix(sent) or None
        return End(piece) if len(state.tokens) + 1 == MOST else Next(token, piece)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served.of(build("translation", tmp_path_factory.mktemp("store")), {})
    yield made
    shutil.rmtree(made.model_dir.parent)


@pytest.fixture(scope="module", params=["trained", "random"])
def folder(request: pytest.FixtureRequest, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights."""
    trained = served.model_dir / "model"
    if request.param == "trained":
        return trained
    import torch

    changed = tmp_path_factory.mktemp("random")
    shutil.copytree(trained, changed, dirs_exist_ok=True)
    torch.manual_seed(3)
    model = M2M100Engine(trained, device="cpu", precision="fp32", threads=1, beams=1, max_output_tokens=MOST).model
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * weights.std() * 0.5)
    model.save_pretrained(changed)
    return changed


class PoisonedEngine(M2M100StepEngine):
    """Cannot bear one of the sentences at its third token."""

    poisoned = -1
    most_read = 0

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        self.most_read = max(self.most_read, len(slots))
        for slot, item in zip(slots, items, strict=True):
            if item.name == POISONED:
                self.poisoned = slot
            elif slot == self.poisoned:
                self.poisoned = -1
        return super().prefill_all(slots, items)

    def step(self, rows: Sequence[StepRow]) -> Any:
        if any(row.slot == self.poisoned and row.position == 2 for row in rows):
            raise RuntimeError("a secret of the engine")
        return super().step(rows)


def stepwise(folder: Path, slots: int) -> PoisonedEngine:
    return PoisonedEngine(folder, device="cpu", precision="fp32", threads=1, slots=slots, longest_item=256, longest_answer=MOST)


@pytest.mark.parametrize("padding", ["none", "static"])
def test_with_random_joins_each_translation_is_what_generate_gives(served: Served, folder: Path, padding: str) -> None:
    vocabulary: Vocabulary = served.handler.vocabulary
    draw = random.Random(5)
    texts = [*odd_texts(12), *(draw.choice(sentence) for sentence in SENTENCES)]
    items = [
        Sentence(tuple(vocabulary.encode(text, draw.choice(LANGUAGES))), vocabulary.languages[draw.choice(LANGUAGES)], i)
        for i, text in enumerate(texts)
    ]
    reference = M2M100Engine(folder, device="cpu", precision="fp32", threads=1, beams=1, max_output_tokens=MOST)
    alone = [reference([item.source], [item.target])[0] for item in items]
    author = Translation(vocabulary)
    engine = stepwise(folder, 5)
    loop = StepLoop.start(engine, author, TurnLimits(1e9, prefill_tokens=90), Padding(padding, 5))
    assert loop.calls.padding.max_rows == 5, "its steps can be repeated, and its slots keep apart"
    assert loop.together, "sentences can be read together"
    got, ended = ["" for _ in items], set()
    waiting = list(enumerate(items))
    while waiting or loop.open:
        for _ in range(min(len(waiting), draw.choice((0, 0, 1, 3)))):
            i, item = waiting.pop(0)
            loop.offer([Stream(i, item)])
        for event in loop.turn():
            if isinstance(event, StreamPiece):
                got[int(str(event.id))] += event.data.decode()
            else:
                assert (event.error is not None) == (event.id == POISONED)
                ended.add(event.id)
    assert ended == set(range(len(items)))
    assert len(author.tokens.pop(POISONED)) == 3
    for i in set(range(len(items))) - {POISONED}:
        assert author.tokens.get(i, []) == alone[i]
        assert got[i] == vocabulary.decode(alone[i])
    assert max(map(len, alone)) > 10
    assert engine.most_read >= 2


def test_its_steps_can_be_repeated(served: Served, folder: Path) -> None:
    assert objection(stepwise(folder, 2), Translation(served.handler.vocabulary).example()) is None
