"""Keep track of which request owns which row.

A batch has n slots, one a request. A request decodes to records, in order: a record is a row that the model is asked for, or
the refusal of that record. The m rows of all slots are the batch's rows. Rows that padding adds have no owner, and nobody reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slotwise.worker.answer import Answer, Refusal
from slotwise.worker.isolation import Tally
from slotwise.worker.request import Request
from slotwise.worker.row import Row
from slotwise.worker.slot_errors import SlotError


@dataclass(slots=True, eq=False)
class Slot:
    """One request and what becomes of it.

    error: what it is answered with as a whole, or None. records: what it decoded to. answer: set last.
    """

    request: Request
    error: Refusal | None = None
    records: list[Row | Refusal] = field(default_factory=list)
    answer: Answer | None = None


@dataclass
class Batch:
    """One batch on its way through the stages of the pipeline. It lives for one call, and nothing of it is kept.

    requests: the n requests. slots: one a request. rows: the m rows, in the order of their owners. tally: what the model ran.
    decode_ms, inference_ms, total_ms: milliseconds.
    """

    requests: Sequence[Request]  # [n]
    slots: list[Slot] = field(init=False)  # [n]
    rows: list[Row] = field(default_factory=list)  # [m]
    tally: Tally = field(default_factory=Tally)
    decode_ms: float = 0.0
    inference_ms: float = 0.0
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        refused = [request.refused for request in self.requests]
        errors = [None if error is None else Refusal.of(error) for error in refused]
        self.slots = [Slot(request, error) for request, error in zip(self.requests, errors, strict=True)]

    @property
    def n(self) -> int:
        """How many requests have to be answered."""
        return len(self.slots)

    @property
    def answers(self) -> list[Answer]:
        """One answer a request, in order, once each is there."""
        return [slot.answer for slot in self.slots if slot.answer is not None]

    def accept(self, i: int, decoded: Sequence[object]) -> None:
        """Take the items that request i decoded to. A SlotError among them stays in its record's place and costs no row."""
        for item in decoded:
            if isinstance(item, SlotError):
                self.slots[i].records.append(Refusal.of(item))
            else:
                row = Row(i, item)
                self.slots[i].records.append(row)
                self.rows.append(row)

    def reject(self, i: int, error: SlotError) -> None:
        """Answer request i as a whole with this error."""
        self.slots[i].error = Refusal.of(error)

    def ids(self, rows: Iterable[Row] | None = None) -> list[str]:
        """The ids of all requests, or of those that own these rows, for the log."""
        slots = range(self.n) if rows is None else dict.fromkeys(row.owner for row in rows)
        return [self.requests[i].id for i in slots]
