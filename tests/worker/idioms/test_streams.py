"""Generators that stream, as authors write them: with seeds, modes of torch, and what they keep of a stream."""

from __future__ import annotations

import decimal
import json
import random
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Settings
from tests.worker.idioms.asked import apart, each_of, together
from tests.worker.idioms.streamed import ITEMS, Streams, no_stream_is_wrong

torch = pytest.importorskip("torch")

NOW: ContextVar[int] = ContextVar("NOW")
NOTES: list[int] = []


@together(ITEMS)
class OfItsItemAlone(Streams):
    """Everything that it needs is in its variables."""

    def stream(self, item: Any) -> Iterator[Any]:
        for i in range(item["pieces"]):
            yield f"{item['number']}:{i} "


@together([*ITEMS, {"pieces": 3, "number": 1, "fails": True}])
class Fails(Streams):
    """Some of its streams raise between two pieces."""

    def stream(self, item: Any) -> Iterator[Any]:
        for i in range(item["pieces"]):
            yield {"number": item["number"], "place": i}
            if i == 1 and "fails" in item:
                raise RuntimeError


@together(ITEMS)
class OneDictAgainAndAgain(Streams):
    """Yields the same dict each time, with other contents."""

    def stream(self, item: Any) -> Iterator[Any]:
        piece = {"number": item["number"], "place": 0}
        for i in range(item["pieces"]):
            piece["place"] = i
            yield piece


@together(ITEMS)
class ChangesItsItem(Streams):
    """Keeps what it has said in the item itself."""

    def stream(self, item: Any) -> Iterator[Any]:
        for i in range(item["pieces"]):
            item.setdefault("said", []).append(i)
            yield {"number": item["number"], "said": item["said"]}


@together(ITEMS)
class AGeneratorOfItsOwn(Streams):
    """Draws from a generator that is this stream's."""

    def stream(self, item: Any) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(item["number"])
        for _ in range(item["pieces"]):
            yield str(float(torch.rand((), generator=generator)))


@together(ITEMS)
class WithinAutocast(Streams):
    """Yields within torch's autocast, which some items want."""

    def stream(self, item: Any) -> Iterator[Any]:
        row = torch.full((1, 1), item["number"] / 7)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(item["number"] % 2)):
            for i in range(item["pieces"]):
                yield str(float((row @ row).float()) + i)


@together(ITEMS)
class WithinNoGrad(Streams):
    """Yields within no_grad, and says whether gradients are kept."""

    def stream(self, item: Any) -> Iterator[Any]:
        with torch.set_grad_enabled(bool(item["number"] % 2)):
            for i in range(item["pieces"]):
                yield {"number": item["number"], "place": i, "grown": (torch.ones(1, requires_grad=True) * 2).requires_grad}


@together(ITEMS)
class WithinAContextOfDecimals(Streams):
    """Yields within a context of decimal numbers."""

    def stream(self, item: Any) -> Iterator[Any]:
        with decimal.localcontext() as context:
            context.prec = item["number"] + 1
            for i in range(1, item["pieces"] + 1):
                yield str(decimal.Decimal(1) / decimal.Decimal(7 * i))


@together(ITEMS)
class WithinDigitsOfNumpy(Streams):
    """Yields within numpy's options of how numbers are written."""

    def stream(self, item: Any) -> Iterator[Any]:
        with np.printoptions(precision=item["number"] + 1):
            for i in range(1, item["pieces"] + 1):
                yield str(np.array([1 / (7 * i)]))


@apart(ITEMS)
class AContextVariable(Streams):
    """Has its number in a context variable: it would be each stream's own, but the source looks like a change of the module."""

    def stream(self, item: Any) -> Iterator[Any]:
        NOW.set(item["number"])
        for i in range(item["pieces"]):
            yield f"{NOW.get()}:{i} "


@apart(ITEMS)
class SeedsAllGenerators(Streams):
    """Seeds Python, numpy and torch, and draws from them."""

    def stream(self, item: Any) -> Iterator[Any]:
        random.seed(item["number"])
        np.random.seed(item["number"])
        torch.manual_seed(item["number"])
        for _ in range(item["pieces"]):
            yield str(random.random() + np.random.rand() + float(torch.rand(())))


@apart(ITEMS)
class SeedsAfterItsFirstPiece(Streams):
    """Seeds when it has begun already."""

    def stream(self, item: Any) -> Iterator[Any]:
        for i in range(item["pieces"]):
            if i == 1:
                random.seed(item["number"])
            yield f"{item['number']}:{random.random() if i else i} "


@apart(ITEMS)
class WithinAForkOfTorch(Streams):
    """Draws within fork_rng, which puts the generator back at its end."""

    def stream(self, item: Any) -> Iterator[Any]:
        with torch.random.fork_rng():
            torch.manual_seed(item["number"])
            for _ in range(item["pieces"]):
                yield str(float(torch.rand(())))


@apart(ITEMS)
class SaysItAllAgain(Streams):
    """Keeps what it has said in a dict on itself."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.said: dict[str, list[int]] = {"now": []}

    def stream(self, item: Any) -> Iterator[Any]:
        self.said["now"] = []
        for i in range(item["pieces"]):
            self.said["now"].append(10 * item["number"] + i)
            yield {"all": list(self.said["now"])}


@apart(ITEMS)
class InAnotherObject(Streams):
    """Keeps it in an object that it has."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.session = SimpleNamespace(number=0)

    def stream(self, item: Any) -> Iterator[Any]:
        self.session.number = item["number"]
        for i in range(item["pieces"]):
            yield f"{self.session.number}:{i} "


@apart(ITEMS)
class InABuffer(Streams):
    """Adds up in an array that was made once."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.sums = np.zeros(2)

    def stream(self, item: Any) -> Iterator[Any]:
        self.sums[:] = 0
        for _ in range(item["pieces"]):
            self.sums += item["number"]
            yield str(self.sums[0])


@apart(ITEMS)
class InAClosure(Streams):
    """Its generator is made in load, with a list around it."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        said: list[int] = []

        def generate(item: Any) -> Iterator[Any]:
            said.clear()
            for i in range(item["pieces"]):
                said.append(10 * item["number"] + i)
                yield json.dumps(said)

        self.generate = generate

    def stream(self, item: Any) -> Iterator[Any]:
        yield from self.generate(item)


@apart(ITEMS)
class InItsModule(Streams):
    """Keeps it in a variable of its module."""

    def stream(self, item: Any) -> Iterator[Any]:
        global NOTES
        NOTES = []
        for i in range(item["pieces"]):
            NOTES.append(10 * item["number"] + i)
            yield json.dumps(NOTES)


class Network(torch.nn.Module):
    """As a model with adapters: which one computes is set on it."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter, self.scale = 0, 1.0

    def set_adapter(self, number: int) -> None:
        self.adapter = number

    def forward(self, data: Any) -> Any:
        return data * self.scale + self.adapter


class Adapted(Streams):
    """Has a network that computes as it was told last."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.network = Network()


@apart(ITEMS)
class AnAdapterOfEach(Adapted):
    """Tells its network which adapter this stream has."""

    def stream(self, item: Any) -> Iterator[Any]:
        self.network.set_adapter(item["number"])
        for i in range(item["pieces"]):
            yield str(float(self.network(torch.tensor(float(i)))))


@apart(ITEMS)
class AScaleOfEach(Adapted):
    """Sets an attribute of its network."""

    def stream(self, item: Any) -> Iterator[Any]:
        self.network.scale = float(item["number"])
        for i in range(1, item["pieces"] + 1):
            yield str(float(self.network(torch.tensor(float(i)))))


@each_of(__name__)
def test_no_stream_is_wrong(kind: type[Streams]) -> None:
    no_stream_is_wrong(kind)
