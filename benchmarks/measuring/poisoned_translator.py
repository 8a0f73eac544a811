"""The handler of forced_translator.py. A record says how long its answer is, and what is to go wrong with it.

{"id": "1", "text": "...", "tokens": 34, "do": "step"}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forced_translator import ForcedTranslator
from translator import Row

from slotwise.worker import Request, Settings, StepEngine
from slotwise.worker.steps.step_engine import StepRow

AT_PREFILL, AT_STEP = "prefill", "step"
FAILS_AT = 3  # the position at which a poisoned step fails


@dataclass(frozen=True)
class Asked(Row):
    """do: "", AT_PREFILL or AT_STEP. wanted: tokens of its answer; 0 where it does not say."""

    do: str = ""
    wanted: int = 0


class Poisoned(StepEngine):
    """An engine whose calls fail where a poisoned item is among theirs, as a network does with a number that it cannot take."""

    together = True

    def __init__(self, engine: Any) -> None:
        self.engine, self.slots = engine, engine.slots
        self.name, self.device, self.precision = engine.name, engine.device, engine.precision
        self.longest_item, self.longest_answer = engine.longest_item, engine.longest_answer
        self.tokens, self.release = engine.tokens, engine.release  # type: ignore[method-assign]
        self.guilty: set[int] = set()  # slots whose steps fail

    def prefill(self, slot: int, item: Asked) -> Any:
        return self.prefill_all([slot], [item])[0]

    def prefill_all(self, slots: Sequence[int], items: Sequence[Asked]) -> Any:
        if any(item.do == AT_PREFILL for item in items):
            raise RuntimeError("the network cannot read this")
        self.guilty = (self.guilty - {*slots}) | {slot for slot, item in zip(slots, items, strict=True) if item.do == AT_STEP}
        return self.engine.prefill_all(slots, items)

    def step(self, rows: Sequence[StepRow]) -> Any:
        if any(row.slot in self.guilty and row.position >= FAILS_AT for row in rows):
            raise RuntimeError("the network cannot go on")
        return self.engine.step(rows)

    def free(self, slot: int) -> None:
        self.guilty.discard(slot)


class PoisonedTranslator(ForcedTranslator):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        return Poisoned(super().load(model_dir, settings))

    def read(self, request: Request) -> list[Any]:
        items = super().read(request)
        return [replace(item, most=item.wanted) if isinstance(item, Asked) and item.wanted else item for item in items]

    def _row(self, record: Any, source: str, target: str) -> Asked:
        row = super()._row(record, source, target)
        return Asked(**vars(row), do=str(record.get("do", "")), wanted=int(record.get("tokens", 0)))


handle = PoisonedTranslator.entry_point()
