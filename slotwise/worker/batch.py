"""Keep track of which request owns which row.

A batch has n slots, one a request. A request decodes to records, in order: a record is a row that the model is asked for, or
the refusal of that record. The m rows of all slots are the batch's rows. Rows that padding adds have no owner, and nobody reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slotwise.worker.answer import Answer, Refusal
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, SlotError, Unavailable

NOT_ENCODED = object()
NOT_RUN = Refusal.of(Unavailable("there was no time left to run this row"))
NOBODY_WAITS = DeadlineExceeded("nobody waits for this answer any more")
MOST_GUILTY = 16  # rows of one owner; then the model is asked for none of its rows any more
TOO_MANY_GUILTY = Refusal.of(ModelFault(f"the model failed on {MOST_GUILTY} inputs of this request, and was asked for no more"))


@dataclass(eq=False)
class Row:
    """One item, and what became of it.

    owner: whose turns it takes, and whose guilty rows it counts among: its slot, unless the batch knows better (Batch.owners).
    slot: of the request that it belongs to, where it is in a Batch. item: what the model was asked last. decoded: the same as
    it was decoded, where a hook may have changed `item`; None where no hook has seen it. output: what the model gave, where
    `error` is None. error: why there is no output. result: what `encode` made of the output, or its refusal.
    """

    owner: int
    item: object
    slot: int = -1
    decoded: object = field(default=None, init=False)
    output: object = field(default=None, init=False)
    error: Refusal | None = field(default=NOT_RUN, init=False)
    result: object = field(default=NOT_ENCODED, init=False)

    @property
    def asked(self) -> object:
        """The item as it was decoded, whatever was done to what the model got."""
        return self.item if self.decoded is None else self.decoded

    def ran(self, output: object) -> None:
        """Take what the model gave: a value that is nobody else's, or the row's own refusal."""
        if isinstance(output, Refusal):
            self.refuse(output)
        else:
            self.output, self.error = output, None

    def refuse(self, error: Refusal) -> None:
        """There is no output, and this is why."""
        self.output, self.error = None, error


@dataclass(eq=False)
class Slot:
    """One request and what becomes of it.

    error: what it is answered with as a whole, or None. records: what it decoded to. unencoded: how many rows among them have
    no result yet. answer: set last.
    """

    request: Request
    error: Refusal | None
    records: Sequence[Row | Refusal] = field(default=(), init=False)
    unencoded: int = field(default=0, init=False)
    answer: Answer | None = field(default=None, init=False)


@dataclass
class Tally:
    """What one batch cost: rows that the model ran, padding among them, and how often a group was cut.

    guilty: how many rows of each owner were convicted.
    """

    rows: int = 0
    padding: int = 0
    cuts: int = 0
    guilty: dict[int, int] = field(default_factory=dict)

    def hopeless(self) -> set[int]:
        """The owners of so many guilty rows that the model is asked for none of theirs any more."""
        return {owner for owner, rows in self.guilty.items() if rows >= MOST_GUILTY}


@dataclass
class Batch:
    """One batch on its way through the stages of the pipeline. It lives for one call, and nothing of it is kept.

    requests: the n requests. owners: whose each is, where one client asks for several of them; None: each is its own.
    slots: one a request. rows: the m rows, in the order of their slots. tally: what the model ran.
    decode_ms, inference_ms, total_ms: milliseconds.
    """

    requests: Sequence[Request]  # [n]
    owners: Sequence[int] | None = None  # [n]
    slots: list[Slot] = field(init=False)  # [n]
    rows: list[Row] = field(default_factory=list)  # [m]
    tally: Tally = field(default_factory=Tally)
    decode_ms: float = 0.0
    inference_ms: float = 0.0
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        self.slots = [Slot(one, None if one.refused is None else Refusal.of(one.refused)) for one in self.requests]

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
        slot, owner = self.slots[i], i if self.owners is None else self.owners[i]
        if len(decoded) == 1 and not isinstance(decoded[0], SlotError):  # nearly every request
            row = Row(owner, decoded[0], i)
            slot.records, slot.unencoded = [row], 1
            self.rows.append(row)
            return
        slot.records = [Refusal.of(item) if isinstance(item, SlotError) else Row(owner, item, i) for item in decoded]
        rows = [record for record in slot.records if isinstance(record, Row)]
        slot.unencoded = len(rows)
        self.rows += rows

    def reject(self, i: int, error: SlotError) -> None:
        """Answer request i as a whole with this error."""
        self.slots[i].error = Refusal.of(error)

    def take_costs(self, one: Batch) -> None:
        """Add what a batch has cost that ran as a part of this one."""
        self.decode_ms, self.inference_ms = self.decode_ms + one.decode_ms, self.inference_ms + one.inference_ms
        self.total_ms += one.total_ms
        self.tally.rows, self.tally.padding = self.tally.rows + one.tally.rows, self.tally.padding + one.tally.padding
        self.tally.cuts += one.tally.cuts

    def ids(self, rows: Iterable[Row] | None = None) -> list[str]:
        """The ids of all requests, or of those that sent these rows, for the log."""
        slots = range(self.n) if rows is None else dict.fromkeys(row.slot for row in rows)
        return [self.requests[i].id for i in slots]
