"""An isolation of a function of items, without a handler around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotwise.worker.batch import Row
from slotwise.worker.isolation import Isolation

Model = Callable[[list[Any], int], list[Any]]


def echo(items: list[Any], size: int) -> list[Any]:
    return list(items)


class Alone(Isolation):
    """An isolation of a function of items, each of an owner of its own; what it gives are outputs and errors."""

    def __init__(self, model: Model, *args: Any, **more: Any) -> None:
        def attempt(rows: list[Row], size: int) -> None:
            for row, output in zip(rows, model([row.item for row in rows], size), strict=True):
                row.ran(output)

        super().__init__(attempt, *args, **more)

    def outputs(self, items: list[Any], *args: Any, **more: Any) -> list[Any]:
        rows = [Row(i, item) for i, item in enumerate(items)]
        self.run(rows, *args, **more)
        return [row.output if row.error is None else row.error.error() for row in rows]


class Asked(Alone):
    """Remembers what it was asked: the items of each call, and to how many rows they were padded."""

    def __init__(self, model: Model, *args: Any, **more: Any) -> None:
        self.asked: list[tuple[list[Any], int]] = []

        def noted(items: list[Any], size: int) -> list[Any]:
            self.asked.append((items, size))
            return model(items, size)

        super().__init__(noted, *args, **more)


def fails_on(*bad: Any) -> Model:
    def model(items: list[Any], size: int) -> list[Any]:
        if set(items) & set(bad):
            raise ValueError("secret")
        return list(items)

    return model


def holds(most: int) -> Model:
    """A device whose memory holds so many rows at once."""

    def device(items: list[Any], size: int) -> list[Any]:
        if size > most:
            raise MemoryError
        return list(items)

    return device
