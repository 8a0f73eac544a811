"""A handler that answers with the bits of what its engine gave. It is served from an archive, so it knows the worker only."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Request
from slotwise.worker.separability.about import identity
from slotwise.worker.separability.bits import Deviation, bits, difference
from slotwise.worker.separability.mates import Company, company
from slotwise.worker.separability.proof import caller

BROKEN, POISON = b"broken", b"poison"


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
            marks = marks_of(inputs)
            if self.poison is not None and marks_of(self.collate([self.poison]))[0] in marks:
                raise ValueError("poison")
            outputs = super().predict(inputs)
            if self.target is not None and (mark := marks_of(self.collate([self.target]))[0]) in marks:
                self.where = (len(marks), marks.index(mark))
            return outputs

        def encode(self, output: Any, item: Any) -> Any:
            return digest(output)

        def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
            return BatchHandler.respond(self, request, results)

    return Watched()


def marks_of(inputs: Any) -> list[Any]:
    """A mark for each row: the same for the same row, also where texts beside it are longer."""
    if isinstance(inputs, dict):  # of arrays, a row each, with zeros behind
        rows = zip(*inputs.values(), strict=True)
        return [tuple(bits(np.trim_zeros(part, "b")) for part in row) for row in rows]
    return [bits(row) for row in inputs]


def digest(output: Any) -> str:
    """The same text for the same bits."""
    return hashlib.sha256(repr(bits(output)).encode()).hexdigest()


def served(given: Any) -> Any:
    """The handler of an entry point, watched, which compares by itself: its row's digest, and the one among copies."""

    class Served(type(watched(type(given.__self__.handler)))):  # type: ignore[misc]
        def load(self, model_dir: Any, settings: Any) -> Any:
            self.engine = super().load(model_dir, settings)
            invited(self, company(model_dir, self))
            self.target = None  # the worker's own proof and warm-up come first
            return self.engine

        def read(self, request: Request) -> list[Any]:
            if self.target is None:
                self.target = self.items[0]
            return super().read(request)

        def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
            body, content_type = super().respond(request, results)
            if request.body != b"0":
                return body, content_type
            if not hasattr(self, "references"):
                self.references = References(self, self.target)
            size, place = self.where
            among = self.references.at(size, place)
            return {
                "got": body,
                "among copies": among,
                "size": size,
                "engine": identity(self, self.model_dir).engine,
            }, content_type

    return Served


def invited(handler: Any, whole: Company | None) -> None:
    """Give a watched handler the row and its mates."""
    assert whole is not None
    handler.poison, handler.target = poison_of(whole), whole.row
    handler.items = [whole.row, *(mate for mate in others(whole) if mate is not handler.poison)]


def others(whole: Company) -> list[Any]:
    """The mates, and the longest of them."""
    return [*whole.mates.values(), *([whole.longest] if whole.longest is not None else [])]


def poison_of(whole: Company) -> Any:
    """An item that no other is like."""
    return whole.mates.get("tiny", whole.mates.get("reversed"))


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
        where = self.handler.where
        outputs = caller(self.handler)([self.row] * size, size)
        self.handler.where = where
        return outputs
