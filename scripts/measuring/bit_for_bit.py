"""Each model on each engine, with both paddings, beside 1 to 16 mates, good, loud and broken: does a bit of an answer change?

What a row gets is compared with what it gets among copies of itself, in a call of the same size and at the same place.
Handlers answer with the bits of what the engine gave, so that nothing is rounded away.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotwise.archive.build import build, extract
from slotwise.console import say
from slotwise.worker import BadRequest, BatchHandler, Headers, Pipeline, Request
from slotwise.worker.about import identity
from slotwise.worker.bits import Deviation, bits, difference, holds_floats
from slotwise.worker.hosts.proving import choices
from slotwise.worker.mates import Company, company

MODELS = ("digits", "mnist", "efficientnet", "ants_bees", "resnet18", "resnet152", "captions", "translation")
WEIGHTS = {"ants_bees": "none", "resnet18": "none", "resnet152": "none"}  # the others have small ones of their own
PADDINGS = ("none", "static")
MATES = range(1, 17)
FEW = {"resnet152": (1, 2, 4, 7, 16)}  # of so large a network
BROKEN, POISON = b"broken", b"poison"


@dataclass
class Found:
    """What was found on one engine. answers: how many were compared. differing: how many of those differ in a bit.

    between_shapes: how far the row's output is at most from what it is alone, in any batch and at any place. texts: whether
    outputs are texts or token ids, of which no bits are to be seen.
    """

    model: str
    engine: str
    version: str
    answers: int = 0
    differing: int = 0
    between_shapes: Deviation = field(default_factory=Deviation)
    texts: bool = False

    def row(self) -> dict[str, Any]:
        """As the figure has it."""
        apart = {"absolute": self.between_shapes.absolute, "relative": self.between_shapes.relative}
        return {**vars(self), "between_shapes": apart}


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every model, every engine that runs it here."""
    (work / "store").mkdir()
    rows = []
    for name in MODELS:
        folder = extract(build(name, work / "store", WEIGHTS.get(name)), work / name)
        for found in try_archive(folder, name, FEW.get(name, MATES)):
            say(f"{found.model}, {found.engine}: {found.differing} of {found.answers} differ")
            rows.append(found.row())
    return {"mates": [MATES[0], MATES[-1]], "few": FEW, "paddings": PADDINGS, "made_up": sorted(WEIGHTS), "rows": rows}


def try_archive(folder: Path, name: str, mates: Sequence[int]) -> Iterator[Found]:
    """What is found of an extracted archive on each engine that its handler can load."""
    kind = handler_of(folder)
    tried = set()
    for settings in choices(folder, max(mates) + 1):
        handler = watched(kind)
        handler.settings = settings.but(proof_s=0.0)
        try:
            handler.engine = handler.load(folder, handler.settings)
        except Exception:
            continue
        if (about := identity(handler)) not in tried:
            tried.add(about)
            yield try_engine(handler, folder, name, mates)


def handler_of(folder: Path) -> type[BatchHandler]:
    """The class of the archive's handler."""
    handler = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))["model"]["handler"]
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop(Path(handler).stem, None)
        module = importlib.import_module(Path(handler).stem)
    finally:
        sys.path.remove(str(folder))
    return type(module.handle.__self__.handler)


def watched(kind: type[BatchHandler]) -> Any:
    """A handler that takes items by their number, answers with bits, and tells where a call had the row that is looked at."""

    class Watched(kind):  # type: ignore[valid-type, misc]
        items: list[Any]
        target: Any = None
        poison: Any = None
        where: tuple[int, int] = (0, 0)  # the size of the last call that had the row, and its place in it

        def read(self, request: Request) -> list[Any]:
            if request.body == BROKEN:
                raise BadRequest("broken")
            return [self.poison] if request.body == POISON else [self.items[int(request.body)]]

        def predict(self, inputs: Any) -> Any:
            marks = [bits(row) for row in inputs]
            if self.poison is not None and bits(self.collate([self.poison])[0]) in marks:
                raise ValueError("poison")
            outputs = super().predict(inputs)
            if self.target is not None and (mark := bits(self.collate([self.target])[0])) in marks:
                self.where = (len(marks), marks.index(mark))
            return outputs

        def encode(self, output: Any, item: Any) -> Any:
            return digest(output)

        def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
            return BatchHandler.respond(self, request, results)

    return Watched()


def digest(output: Any) -> str:
    """The same text for the same bits."""
    return hashlib.sha256(repr(bits(output)).encode()).hexdigest()


def try_engine(handler: Any, folder: Path, name: str, mates: Sequence[int]) -> Found:
    """Ask for one row beside all kinds of mates, with every padding."""
    whole = company(folder, handler)
    assert whole is not None
    about = identity(handler)
    found = Found(name, about.engine, about.version)
    rows = max(mates) + 1
    vars(handler)["max_rows"] = rows
    handler.poison, handler.target = poison_of(whole), whole.row
    handler.items = [whole.row, *(mate for mate in others(whole) if mate is not handler.poison)]
    references = References(handler, whole.row)
    for padding in PADDINGS:
        handler.settings = handler.settings.but(padding=padding, batch_size=rows, response_timeout_s=3600.0)
        pipeline = Pipeline(handler)
        for count in mates:
            for bodies in batches(count, len(handler.items) - 1):
                place = bodies.index(b"0")
                requests = [Request(body, Headers(), str(i)) for i, body in enumerate(bodies)]
                answer = pipeline.answer(requests)[place]
                assert answer.status == 200, answer
                found.answers += 1
                found.differing += answer.body.decode() != references.at(*handler.where)
    found.between_shapes, found.texts = references.between, not holds_floats(references.alone)
    return found


def others(whole: Company) -> list[Any]:
    """The mates, and the longest of them."""
    return [*whole.mates.values(), *([whole.longest] if whole.longest is not None else [])]


def poison_of(whole: Company) -> Any:
    """An item that no other is like."""
    return whole.mates.get("tiny", whole.mates.get("reversed"))


def batches(count: int, kinds: int) -> Iterable[list[bytes]]:
    """The row in the middle of so many mates: all kinds of them; some that are refused; one that makes the model fail."""
    good = [str(1 + i % kinds).encode() for i in range(count)]
    broken = [BROKEN if i % 2 else body for i, body in enumerate(good)]
    poisoned = [POISON, *good[1:]]
    for mates in (good, broken, poisoned):
        middle = (count + 1) // 2
        yield [*mates[:middle], b"0", *mates[middle:]]


class References:
    """What the row gets among copies of itself, by the call's size and the row's place. between: how far it is from alone."""

    def __init__(self, handler: Any, row: Any) -> None:
        self.handler, self.row, self.between = handler, row, Deviation()
        self.known: dict[int, list[Any]] = {}
        self.alone = self._outputs(1)[0]

    def at(self, size: int, place: int) -> str:
        """The digest of the row's output."""
        if size not in self.known:
            outputs = self._outputs(size)
            for output in outputs:
                self.between = self.between.most(difference(self.alone, output))
            self.known[size] = [digest(output) for output in outputs]
        return str(self.known[size][place])

    def _outputs(self, size: int) -> list[Any]:
        from slotwise.worker.proof import caller

        where = self.handler.where
        outputs = caller(self.handler)([self.row] * size, size)
        self.handler.where = where
        return outputs
