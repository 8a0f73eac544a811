"""Handlers that change their model for a request: a head, an adapter, weights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong
from tests.worker.idioms.classifier import Classifier

torch = pytest.importorskip("torch")

HEADS = [{"text": text, "head": ("x", "y")[i % 2]} for i, text in enumerate(tiny.TEXTS)]


class Heads(Classifier):
    """Has two heads for its model, and picks the one that a request names."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        torch.manual_seed(9)
        self.heads = {name: torch.nn.Linear(16, 2) for name in "xy"}

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.pick(data[0]["body"]["head"])
        return super().preprocess(data)

    def pick(self, name: str) -> None:
        raise NotImplementedError

    def postprocess(self, data: Any) -> Any:
        return data.tolist()


@apart(HEADS)
class AHeadOfEach(Heads):
    """Puts the head into the model, as PEFT's `set_adapter` does."""

    def pick(self, name: str) -> None:
        self.model.classifier = self.heads[name]


@apart(HEADS)
class AHeadAmongTheModules(Heads):
    """Puts the head among the modules that the model has."""

    def pick(self, name: str) -> None:
        self.model._modules["classifier"] = self.heads[name]


@apart(HEADS)
class TheHeadsWeights(Heads):
    """Loads the weights of a head into the model's own."""

    def pick(self, name: str) -> None:
        self.model.classifier.load_state_dict(self.heads[name].state_dict())


@apart(HEADS)
class TheHeadsMemory(Heads):
    """Writes a head's numbers over the model's, in a function of the module."""

    def pick(self, name: str) -> None:
        merge(self.model, self.heads[name])


def merge(model: Any, head: Any) -> None:
    for own, other in zip(model.classifier.parameters(), head.parameters(), strict=True):
        own.data.copy_(other)


@apart([{"text": text, "head": ""} for text in tiny.TEXTS], late=HEADS)
class AHeadOfSome(Heads):
    """Picks a head by a name that is put together, for some requests only: no first call shows it."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.heads[""], self.models = self.model.classifier, [self.model]

    def pick(self, name: str) -> None:
        for model in self.models:
            setattr(model, "classi" + "fier", self.heads[name])


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Classifier], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
