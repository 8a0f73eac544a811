"""A model that a library made, as its folder; what may be sent to it; and what the library itself answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

JSON, TEXT, RAW = ({"content-type": kind} for kind in ("application/json", "text/plain", "application/octet-stream"))
REQUESTS = 16
TOLERANCE = 1e-4

Body = tuple[bytes, dict[str, str]]


@dataclass(frozen=True)
class Truth:
    """What the library answers to one request. label: its best class, None where there are none. numbers: all of them."""

    numbers: Any
    label: str | None = None


@dataclass(frozen=True)
class Made:
    """bodies [16]: good requests. truths [16]: the library's answers. bad: requests that have to be refused. tolerance: how far
    a number may be off.
    """

    bodies: Sequence[Body]
    truths: Sequence[Truth]
    bad: Sequence[Body]
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Brought:
    """One of the thirty. library: who made it. shows: what it stands for. make: writes its folder, and says what is asked.

    refused: a part of the line that the build says instead; "" where it is built. needs: packages that `make` imports.
    """

    name: str
    library: str
    shows: str
    make: Callable[[Path], Made]
    refused: str = ""
    needs: Sequence[str] = ()


@dataclass
class Shelf:
    """The models of one file, in their order; `@shelf.add(...)` puts one there."""

    all: list[Brought] = field(default_factory=list)

    def add(self, name: str, library: str, shows: str, refused: str = "", needs: Sequence[str] = ()) -> Callable[[Any], Any]:
        def put(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
            self.all.append(Brought(name, library, shows, make, refused, needs))
            return make

        return put


def described(folder: Path, handler: str, top: str = "", sections: str = "") -> None:
    """Write model.toml."""
    text = f'name = "{folder.name}"\nhandler = "{handler}"\ntop_k = 16\n{top}\n{sections}\n'
    (folder / "model.toml").write_text(text, "utf-8")


def softmax(values: Any) -> Any:
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def classified(scores: Any, labels: Sequence[Any]) -> list[Truth]:
    """Truths of scores [b, classes]."""
    return [Truth(row, str(labels[int(np.argmax(row))])) for row in np.asarray(scores)]


def valued(values: Any) -> list[Truth]:
    """Truths of values [b] or [b, n]."""
    return [Truth(np.ravel(row)) for row in np.asarray(values)]


def as_json(value: Any) -> Body:
    """A request of JSON."""
    return json.dumps(value).encode(), JSON
