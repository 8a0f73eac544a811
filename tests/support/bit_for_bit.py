"""Each model on each engine, with both paddings, beside 1 to 16 mates, good, loud and broken: does a bit of an answer change?

What a row gets is compared with what it gets among copies of itself, in a call of the same size and at the same place.
Handlers answer with the bits of what the engine gave, so that nothing is rounded away.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotwise.worker import BatchHandler, Headers, Pipeline, Request
from slotwise.worker.hosts.proving import choices
from slotwise.worker.separability.about import identity
from slotwise.worker.separability.bits import Deviation, holds_floats
from slotwise.worker.separability.mates import company
from tests.support.watched import BROKEN, POISON, References, invited, watched

MODELS = ("digits", "mnist", "efficientnet", "ants_bees", "resnet18", "resnet152", "captions", "translation", "iris", "moods")
WEIGHTS = {"ants_bees": "none", "resnet18": "none", "resnet152": "none"}  # the others have small ones of their own
PADDINGS = ("none", "static")
MATES = range(1, 17)
FEW = {"resnet152": (1, 2, 4, 7, 16)}  # of so large a network


@dataclass
class Found:
    """What was found on one engine. answers: how many were compared. differing: how many of those differ in a bit.

    between_shapes: how far the row's output is at most from what it is alone, in any batch and at any place. texts: whether
    outputs are texts or token ids, of which no bits are to be seen. choice: the settings that choose the engine. kinds: of
    mates. served, served_differing: the same of answers that came from a server; shared: how many of those shared their call.
    """

    model: str
    engine: str
    version: str
    choice: dict[str, str] = field(default_factory=dict)
    kinds: int = 0
    answers: int = 0
    differing: int = 0
    served: int = 0
    served_differing: int = 0
    shared: int = 0
    between_shapes: Deviation = field(default_factory=Deviation)
    texts: bool = False

    def row(self) -> dict[str, Any]:
        """As the figure has it."""
        apart = {"absolute": self.between_shapes.absolute, "relative": self.between_shapes.relative}
        return {**vars(self), "between_shapes": apart}


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
        if (about := identity(handler, folder)) not in tried:
            tried.add(about)
            found = try_engine(handler, folder, name, mates)
            found.choice = {"engine": settings.engine, "precision": settings.precision}
            yield found


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


def try_engine(handler: Any, folder: Path, name: str, mates: Sequence[int]) -> Found:
    """Ask for one row beside all kinds of mates, with every padding."""
    invited(handler, company(folder, handler))
    about = identity(handler, folder)
    found = Found(name, about.engine, about.version)
    rows = max(mates) + 1
    vars(handler)["max_rows"] = rows
    references, found.kinds = References(handler, handler.target), len(handler.items) - 1
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


def batches(count: int, kinds: int) -> Iterable[list[bytes]]:
    """The row in the middle of so many mates: all kinds of them; some that are refused; one that makes the model fail."""
    good = [str(1 + i % kinds).encode() for i in range(count)]
    broken = [BROKEN if i % 2 else body for i, body in enumerate(good)]
    poisoned = [POISON, *good[1:]]
    for mates in (good, broken, poisoned):
        middle = (count + 1) // 2
        yield [*mates[:middle], b"0", *mates[middle:]]
