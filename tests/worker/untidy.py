"""Handlers whose authors reuse what they return, change what they get, and return it in any container."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.worker import Headers, Settings, SlotError
from tests.worker.toy import POISON, Toy

Pair = namedtuple("Pair", ["double", "square"])


class ModelOutput(OrderedDict[str, Any]):
    """As transformers has it."""


@dataclass
class Named:
    double: Any
    square: Any


class Counted:
    """A list in all but its type, as some libraries have one."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: Any) -> Any:
        return self.values[at]


def _reusing(rows: list[Any]) -> Iterator[Any]:
    buffer = np.zeros(2)
    for row in rows:
        buffer[:] = row
        yield buffer


# What a model returns for its rows [b, 2], each (2x + 1, x * x); `first` finds 2x + 1 in one row's output.
CONTAINERS: dict[str, Any] = {
    "array": lambda rows: np.stack(rows),
    "list of arrays": list,
    "list of lists": lambda rows: [row.tolist() for row in rows],
    "list of dicts": lambda rows: [{"double": row[0], "square": [row[1]]} for row in rows],
    "tuple of rows": tuple,
    "generator": lambda rows: (row for row in rows),
    "generator that reuses": _reusing,
    "dict": lambda rows: {"double": np.stack(rows)[:, 0], "square": np.stack(rows)},
    "dict of lists": lambda rows: {"double": [row[0] for row in rows], "square": [row.tolist() for row in rows]},
    "ModelOutput": lambda rows: ModelOutput(double=np.stack(rows)[:, 0], square=np.stack(rows)),
    "tuple of columns": lambda rows: (np.stack(rows)[:, 0], np.stack(rows)),
    "tuple of one column": lambda rows: (np.stack(rows)[:, 0],),
    "named tuple": lambda rows: Pair(np.stack(rows)[:, 0], np.stack(rows)),
    "dataclass": lambda rows: Named(np.stack(rows)[:, 0], np.stack(rows)),
    "list of columns": lambda rows: [np.stack(rows)[:, 0], np.stack(rows)],
    "columns first": lambda rows: np.stack(rows).T,
    "dict by row": lambda rows: {i: row for i, row in enumerate(rows)},
    "counted": lambda rows: Counted(list(rows)),
}
# Nobody can read these as one output a row, so nobody gets an answer.
REFUSED = {"dataclass", "list of columns", "columns first", "dict by row", "counted"}


def first(output: Any) -> float:
    if isinstance(output, dict):
        output = output["double"]
    while isinstance(output, list | tuple) or (isinstance(output, np.ndarray) and output.ndim):
        output = output[0]
    return float(output)


def refill(kept: Any, fresh: Any) -> Any:
    """What is kept, filled again with what is fresh, as far as that can be done in place."""
    if isinstance(kept, np.ndarray) and kept.shape == np.shape(fresh):
        kept[...] = fresh
    elif type(kept) is list and type(fresh) is list:
        kept[:] = [refill(a, b) for a, b in zip(kept, fresh, strict=False)] + fresh[len(kept) :]
        del kept[len(fresh) :]
    elif isinstance(kept, dict) and isinstance(fresh, dict):
        for name in fresh:
            kept[name] = refill(kept.get(name), fresh[name])
        for name in [name for name in kept if name not in fresh]:
            del kept[name]
    else:
        return fresh
    return kept


class Untidy(Toy):
    """A toy that answers [2x + 1] a row, whatever it does on the way.

    container: in what it returns its outputs. habits: what else it does: "reuse" outputs, change "items", "inputs", "groups"
    and "results", return the same "result" and "answer" again, "decode" into one buffer, have no "example".
    """

    def __init__(self, container: str = "array", habits: frozenset[str] = frozenset(), **settings: Any) -> None:
        super().__init__(Settings(**{"batch_size": 8, "decode_threads": 1, **settings}))
        self.container, self.habits = CONTAINERS[container], habits
        self.outputs: Any = None
        self.result: list[Any] = []
        self.body: list[Any] = []
        self.buffer = np.zeros(1)
        self.zero = np.zeros(1)

    def example(self) -> Any:
        return None if "example" in self.habits else self.zero

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        items = super().decode(body, headers)
        if "decode" in self.habits and len(items) == 1 and isinstance(items[0], np.ndarray):
            self.buffer[:] = items[0]
            return [self.buffer]
        return items

    def groups(self, items: Any) -> list[list[int]]:
        if "groups" in self.habits:
            for item in items:
                item -= items[0]
        return super().groups(items)

    def collate(self, items: list[Any]) -> Any:
        if "items" not in self.habits:
            return super().collate(items)
        rows = []
        for item in items:
            rows.append(float(item[0]))
            item -= 1  # so whoever is handed out twice is another
        return np.array(rows)[:, None]

    def predict(self, inputs: Any) -> Any:
        self.calls.append(inputs.copy())
        if (inputs == POISON).any():
            raise ValueError("secret of another client")
        rows = [np.array([2 * x + 1, x * x]) for x in inputs[:, 0]]
        if "inputs" in self.habits:
            inputs += 1000
        outputs = self.container(rows)
        if "reuse" in self.habits:
            outputs = self.outputs = refill(self.outputs, outputs)
        return outputs

    def encode(self, output: Any, item: Any) -> Any:
        value = first(output)
        if isinstance(output, np.ndarray):
            output[...] = 7
        if "result" not in self.habits:
            return [value]
        self.result[:] = [value]
        return self.result

    def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
        body = [result.body() if isinstance(result, SlotError) else result[0] for result in results]
        for result in results if "results" in self.habits else ():
            if isinstance(result, SlotError):
                result.message, result.code = "changed", 418
            else:
                result[:] = ["changed"]
        if "answer" not in self.habits:
            return body, "application/json"
        self.body[:] = body
        return self.body, "application/json"


HABITS = ["reuse", "items", "inputs", "groups", "results", "result", "answer", "decode", "example"]
