"""An engine and an author of a simulation: the answer follows from the item, the tokens and the seed, and faults from the item.

What an output is depends on everything that its slot holds. So a token that was written to another slot, at another place,
twice or not at all gives another answer.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from slotwise.worker.slot_errors import SlotError, Unprocessable
from slotwise.worker.steps.step_engine import End, Next, StepEngine, StepRow, StepState

PREFILL_FAULTS = {"raises": 500, "refuses": 422, "exits": 500, "nan": 500, "memory": 507, "nothing": 500}
STEP_FAULTS = {"raises": 500, "refuses": 422, "exits": 500, "nan": 500, "memory": 507, "count": 500}
ADVANCE_FAULTS = {
    "raises": 500, "refuses": 422, "exits": 500, "none": 500, "token": 500, "text": 500, "below": 500,
    "piece": 500, "piece-nan": 500, "gives error": 422,
}  # fmt: skip


def wrong(kind: str) -> BaseException:
    """What a fault of this kind raises."""
    errors = {"refuses": Unprocessable("not this one"), "exits": SystemExit(3), "memory": MemoryError()}
    return errors.get(kind, ValueError("a secret"))


@dataclass(frozen=True)
class SimItem:
    """length: tokens of its prefill. answer: tokens of its answer. fault: where it goes wrong, how, and at which token."""

    name: str
    length: int
    answer: int
    fault: str = ""
    kind: str = ""
    fault_at: int = 0
    work: int = 1  # memory of its row while a step runs


class SimAuthor:
    """Chooses tokens by the output and a number drawn; what it sends depends on all that came before."""

    def __init__(self, example: SimItem | None = None) -> None:
        self._example = example

    def example(self) -> SimItem | None:
        return self._example

    def others(self) -> list[SimItem]:
        return []

    def advance(self, state: StepState, output: Any) -> Any:
        item, k = state.item, len(state.tokens)
        if item.fault == "advance" and k == item.fault_at:
            return self.mistake(item)
        token = (int(output[0]) + state.random.randrange(1000)) % 1000
        state.own = (31 * (state.own or 7) + token) % 65537
        output[:] = 0  # it is the author's own
        state.tokens.append(5)  # and so is this
        last = k + 1 >= item.answer
        piece = f"{k}:{token}:{state.own} " if last or token % 3 else None
        return End(piece) if last else Next(token, piece)

    def mistake(self, item: SimItem) -> Any:
        if item.kind in ("raises", "refuses", "exits"):
            raise wrong(item.kind)
        return {
            "none": None,
            "token": Next(None),  # type: ignore[arg-type]
            "text": "next",
            "below": Next(-1),
            "piece": Next(1, object()),
            "piece-nan": Next(1, float("nan")),
            "gives error": Unprocessable("not this one"),
        }[item.kind]


@dataclass
class Cache:
    """What a slot holds."""

    item: SimItem
    read: int
    tokens: list[int] = field(default_factory=list)

    def output(self, upto: int) -> float:
        return float(zlib.crc32(repr((self.item.name, self.read, self.tokens[:upto])).encode()) % 100_000)


class Watcher(Protocol):
    """A history, which is told what the engine is asked for."""

    random: random.Random

    def step_starts(self, rows: Sequence[tuple[StepRow, Cache | None]]) -> None: ...

    def stepped(self, names: Sequence[str]) -> None: ...

    def prefill_starts(self, slot: int, item: SimItem, start: int, stop: int, place: int = 0) -> None: ...

    def took(self, slot: int, seconds: float) -> None: ...

    def problem(self, text: str) -> None: ...


class SimEngine(StepEngine):
    """An engine with slots, memory and a clock. memory: tokens that fit. dies_at: the call from which on it is dead, or 0."""

    def __init__(
        self, watcher: Watcher, slots: int, *, in_parts: bool, memory: int, flaky: float = 0.0, together: bool = False
    ) -> None:
        self.watcher, self.slots, self.in_parts, self.memory, self.flaky = watcher, slots, in_parts, memory, flaky
        self.together = together
        self.longest_item, self.longest_answer = 60, 200
        self.caches: dict[int, Cache] = {}
        self.dead = False
        self.buffer = np.zeros((slots + 1, 2))  # filled again each time

    def tokens(self, item: SimItem) -> int:
        return item.length

    def used(self) -> int:
        return sum(cache.read + len(cache.tokens) for slot, cache in self.caches.items() if slot != self.slots)

    def prefill(self, slot: int, item: SimItem) -> Any:
        return self.prefill_part(slot, item, 0, item.length)

    def prefill_all(self, slots: Sequence[int], items: Sequence[SimItem]) -> Any:
        try:
            outputs = [
                self.read(slot, item, 0, item.length, i) for i, (slot, item) in enumerate(zip(slots, items, strict=True))
            ]
            if len(slots) > 1 and self.watcher.random.random() < self.flaky:
                raise RuntimeError("a hiccup")
            self.buffer[: len(outputs)] = outputs
        except BaseException:
            for slot in slots:
                self.caches.pop(slot, None)
            raise
        return self.buffer[: len(outputs)]

    def prefill_part(self, slot: int, item: SimItem, start: int, stop: int) -> Any:
        return self.read(slot, item, start, stop)

    def read(self, slot: int, item: SimItem, start: int, stop: int, place: int = 0) -> Any:
        """Read one item, the one at this place of a call."""
        self.watcher.prefill_starts(slot, item, start, stop, place)
        self.watcher.took(slot, 0.002 * (stop - start))
        if self.dead:
            raise RuntimeError("the device is lost")
        if start == 0:
            if slot in self.caches and slot != self.slots:
                self.watcher.problem(f"{item.name} is read into a slot that is not free")
            if slot != self.slots and self.used() + stop > self.memory:
                raise MemoryError
            self.caches[slot] = Cache(item, 0)
        cache = self.caches[slot]
        if cache.item.name != item.name or cache.read != start:
            self.watcher.problem(f"{item.name} is read from {start}, but the slot holds {cache}")
        cache.read = stop
        if item.fault == "prefill" and stop == item.length:
            if item.kind == "nothing":
                return None
            if item.kind != "nan":
                raise wrong(item.kind)
            return np.array([np.nan, 0.0])
        return np.array([cache.output(0), 0.0])

    def step(self, rows: Sequence[StepRow]) -> Any:
        rows = list(rows)
        self.watcher.step_starts([(row, self.caches.get(row.slot)) for row in rows])
        self.watcher.took(rows[0].slot, 0.01 + 0.001 * len(rows))
        if self.dead:
            raise RuntimeError("the device is lost")
        if self.used() + sum(self.caches[row.slot].item.work for row in rows) > self.memory:
            raise MemoryError
        if sum(row.slot != self.slots for row in rows) > 1 and self.watcher.random.random() < self.flaky:
            raise RuntimeError("a hiccup")
        for i, row in enumerate(rows):
            cache = self.caches[row.slot]
            if row.position > len(cache.tokens):
                self.watcher.problem(f"{cache.item.name}: nothing is written before {row.position}")
            cache.tokens[row.position :] = [row.token]
            item = cache.item
            self.buffer[i] = cache.output(row.position + 1), 0.0
            if item.fault == "step" and row.position == item.fault_at:
                if item.kind == "count":
                    return self.buffer[: len(rows) - 1]
                if item.kind != "nan":
                    raise wrong(item.kind)
                self.buffer[i] = np.nan
        good = [row for row, output in zip(rows, self.buffer, strict=False) if np.isfinite(output).all()]
        self.watcher.stepped([self.caches[row.slot].item.name for row in good])
        return self.buffer[: len(rows)]

    def free(self, slot: int) -> None:
        self.caches.pop(slot, None)
        if self.watcher.random.random() < 0.05:
            raise OSError("cannot free")


@dataclass(frozen=True)
class Whole:
    """What a stream gives alone. status: 200, or that of the error it ends with."""

    pieces: tuple[bytes, ...]
    status: int


def alone(item: SimItem, seed: int, longest_item: int = 60) -> Whole:
    """A stream by itself, without the code that is tested."""
    if item.length > longest_item:
        return Whole((), 413)
    if item.fault == "prefill":
        return Whole((), PREFILL_FAULTS[item.kind])
    cache, state, tokens, pieces = Cache(item, item.length), StepState(item, random.Random(seed)), list[int](), list[bytes]()
    author = SimAuthor()
    while True:
        if item.fault == "advance" and len(tokens) == item.fault_at:
            return Whole(tuple(pieces), ADVANCE_FAULTS[item.kind])
        state.tokens = list(tokens)
        outcome = author.advance(state, np.array([cache.output(len(tokens)), 0.0]))
        assert not isinstance(outcome, SlotError)
        if outcome.piece is not None:
            pieces.append(outcome.piece.encode())
        if isinstance(outcome, End):
            return Whole(tuple(pieces), 200)
        if item.fault == "step" and len(tokens) == item.fault_at:
            return Whole(tuple(pieces), STEP_FAULTS[item.kind])
        tokens.append(outcome.token)
        cache.tokens.append(outcome.token)
