"""What a stranger's handler sees of a batch, and what it sets: an attempt at some slots sees only those, numbered from 0.

The server's own context is used, with other slots in it, and not a copy: a handler may have kept it since `initialize`. What
was set in an attempt that failed is forgotten with it; what was set in one that succeeded goes where it belongs.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slotwise.worker.guard.held_metrics import HeldMetrics
from slotwise.worker.slot_errors import PHRASES, SlotError


class Frozen:
    """A value that may be changed by who gets it, kept so that it can be given out again as it was."""

    __slots__ = ("kept", "thaw")

    def __init__(self, value: Any) -> None:
        self.kept: Any
        self.thaw: Callable[[Any], Any]
        if type(value) is bytearray:
            self.kept, self.thaw = bytes(value), bytearray
            return
        try:
            self.kept, self.thaw = marshal.dumps(value), marshal.loads  # a tenth of the time that deepcopy takes
        except ValueError:
            self.kept, self.thaw = copy.deepcopy(value), copy.deepcopy


def frozen(row: Any) -> Any:
    """One row's fields, so that `thawed` gives the same again, however often."""
    return {name: value if type(value) is bytes or type(value) is str else Frozen(value) for name, value in row.items()}


def thawed(row: Any) -> Any:
    """A row as the server gave it."""
    return {name: value.thaw(value.kept) if type(value) is Frozen else value for name, value in row.items()}


class Given(NamedTuple):
    """What theirs gave for one slot: its result, and the status and headers that it set."""

    result: Any
    processor: Any


@dataclass(frozen=True, slots=True)
class KeptSlot:
    """One request as the server gave it, to be answered once more."""

    identity: Any
    processor: Any
    kept: Any

    def row(self) -> Any:
        """Its row."""
        return thawed(self.kept)


class BatchSlots:
    """One batch as the server gave it. `whole` is true until the rows have been given out once."""

    def __init__(self, raw: Any, rows: Sequence[Any], held: HeldMetrics) -> None:
        self.raw, self.rows, self.held = raw, rows, held
        self.ids = raw.request_ids or {}
        self.processors = list(raw.request_processor)
        self.headers = [dict(processor.get_request_properties()) for processor in self.processors]
        self.kept = [frozen(row) for row in rows]
        self.whole = True

    @property
    def n(self) -> int:
        """How many slots there are."""
        return len(self.processors)

    def all_ids(self) -> str:
        """Every request's id, for the log."""
        return ", ".join(str(identity) for identity in self.ids.values())

    def enter(self, slots: Sequence[int]) -> Any:
        """Show theirs only these slots; returns their rows."""
        if self.whole and len(slots) == self.n:
            self.whole = False
            self.held.begin(self.raw, None)
            return self.rows
        self.whole = False
        self.raw.request_processor = [self.fresh(i) for i in slots]
        self.raw.request_ids = ids = {k: self.ids.get(i) for k, i in enumerate(slots)}
        self.held.begin(self.raw, ids)
        return [thawed(self.kept[i]) for i in slots]

    def keep(self, slots: Sequence[int], results: Sequence[Any]) -> list[Given]:
        """The attempt succeeded: what it gave and set, slot by slot."""
        self.held.keep(self.raw)
        processors = self.raw.request_processor
        return [Given(result, processor) for result, processor in zip(results, processors, strict=True)]

    def drop(self) -> None:
        """The attempt failed: nothing of it is left."""
        self.held.drop(self.raw)

    def restore(self, processors: Sequence[Any]) -> None:
        """Give the context back to the server, with what is to be sent in its slots."""
        self.held.end(self.raw, self.ids)
        self.raw.request_processor = list(processors)
        self.raw.request_ids = self.ids

    def fresh(self, i: int) -> Any:
        """Slot i as the server made it: nothing set."""
        return type(self.processors[i])(dict(self.headers[i]))

    def kept_slot(self, i: int) -> KeptSlot:
        """Slot i for later."""
        return KeptSlot(self.ids.get(i), self.fresh(i), self.kept[i])

    def refused(self, i: int, error: SlotError) -> Any:
        """Slot i with an error's status."""
        processor = self.fresh(i)
        processor.report_status(error.code, PHRASES.get(error.code, ""))
        processor.add_response_property("content-type", "application/json")
        return processor
