"""A toy step engine, its author, and what streams of it give: small enough to be followed by hand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from slotwise.worker.steps.step_engine import End, Next, StepEngine, StepRow, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import StreamPiece

EXAMPLE = {"text": [0, 0], "tokens": 3}


class AddingEngine(StepEngine):
    """The output is the sum of all that a slot holds, with one number for each token up to 9."""

    def __init__(self, slots: int = 4) -> None:
        self.slots = slots
        self.held: dict[int, list[int]] = {}
        self.calls: list[list[StepRow]] = []

    def prefill(self, slot: int, item: Any) -> Any:
        if "raise" in item:
            raise item["raise"]
        self.held[slot] = [sum(item["text"])]
        item["text"].append(99)  # its own copy
        return np.array([float(self.held[slot][0]), 0.0])

    def step(self, rows: Sequence[StepRow]) -> Any:
        self.calls.append(list(rows))
        for row in rows:
            self.held[row.slot][row.position + 1 :] = [row.token]
        outputs = np.array([[float(sum(self.held[row.slot])), 0.0] for row in rows])
        rows.clear()  # type: ignore[attr-defined]
        return outputs

    def free(self, slot: int) -> None:
        self.held.pop(slot, None)


class Counting:
    """Sends each output, and ends after as many tokens as the item says."""

    def __init__(self, example: Any = EXAMPLE) -> None:
        self._example = example

    def example(self) -> Any:
        return self._example

    def others(self) -> list[Any]:
        return [item(0), item(8, 9)]

    def advance(self, state: StepState, output: Any) -> Any:
        piece = str(int(output[0])) + " "
        if len(state.tokens) + 1 == state.item["tokens"]:
            return End(piece)
        return Next(int(output[0]) % 7, piece)


def item(*text: int, tokens: int = 4, **more: Any) -> dict[str, Any]:
    return {"text": list(text), "tokens": tokens, **more}


def finished(loop: StepLoop, turns: int = 100) -> dict[Hashable, tuple[str, int]]:
    """What each stream gave, and the status of its end."""
    texts: dict[Hashable, str] = {}
    ends: dict[Hashable, int] = {}
    for _ in range(turns):
        for event in loop.turn():
            assert event.id not in ends
            if isinstance(event, StreamPiece):
                texts[event.id] = texts.get(event.id, "") + event.data.decode()
            else:
                ends[event.id] = 200 if event.error is None else event.error.status
        if not loop.open:
            break
    assert not loop.open
    assert not loop.slots.given
    return {one: (texts.get(one, ""), status) for one, status in ends.items()}


def loop_of(engine: StepEngine | None = None, author: Any = None, **more: Any) -> StepLoop:
    return StepLoop(engine or AddingEngine(), author or Counting(), **more)


def alone(text: Sequence[int], tokens: int = 4) -> str:
    held, pieces = [sum(text)], []
    for _ in range(tokens):
        pieces.append(f"{sum(held)} ")
        held.append(sum(held) % 7)
    return "".join(pieces)
