"""What a stranger's handler sees of a batch, and what it sets: an attempt at some slots sees only those, numbered from 0.

The server's own context is used, with other slots in it, and not a copy: a handler may have kept it since `initialize`. Every
attempt gets slots, ids and rows of its own, as the server made them: whatever theirs does to them, or sets in them later, no
other attempt sees it and no client gets it. So what the server handed over is kept to be given again, however deep it is.
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.worker.answer import REQUEST_ID, sent_back
from slotwise.worker.copies import copied
from slotwise.worker.guard.held_metrics import HeldMetrics
from slotwise.worker.guard.owned import Owned
from slotwise.worker.hosts.java.unreadable import Unreadable
from slotwise.worker.request import Headers
from slotwise.worker.slot_errors import PHRASES, BadRequest, ModelFault, SlotError

PLAIN = frozenset({bytes, str, int, float, bool, type(None)})  # nobody can change these


@dataclass(frozen=True, slots=True)
class Again:
    """A value that who gets it may change. `make(kept)` is the value as it was, as often as it is wanted."""

    kept: Any
    make: Callable[[Any], Any]


class Unchanging(dict[str, Any]):
    """Named values that nobody can change."""


def keep(fields: Any) -> dict[str, Any]:
    """Named values, so that `given` makes them again. Raises what copying an object that is neither JSON nor bytes raises."""
    if PLAIN.issuperset(map(type, fields.values())):
        return Unchanging(fields)
    return {name: value if type(value) in PLAIN else _again(value) for name, value in fields.items()}


def given(kept: dict[str, Any]) -> dict[str, Any]:
    """The values as they were: who gets them may do anything to them."""
    if type(kept) is Unchanging:
        return {**kept}
    return {name: value.make(value.kept) if type(value) is Again else value for name, value in kept.items()}


def _again(value: Any) -> Again:
    if type(value) is bytearray:
        return Again(bytes(value), bytearray)
    if type(value) is dict or type(value) is list:  # a server makes these of JSON only
        try:
            return Again(marshal.dumps(value), marshal.loads)  # a tenth of the time that a copy takes
        except ValueError:  # nested deeper than marshal goes, or no JSON after all
            return Again(copied(value), copied)
    return Again(copy.deepcopy(value), copy.deepcopy)


@dataclass(frozen=True, slots=True)
class KeptSlot:
    """One request as the server gave it, to be answered once more."""

    name: str
    identity: Any
    processor: Any
    kept: Any

    def row(self) -> Any:
        """Its row."""
        return given(self.kept)


def _kept(row: Any) -> Any:
    if Unreadable in map(type, row.values()):
        return BadRequest("the body is not what its content type says")
    try:
        return keep(row)
    except Exception:
        return ModelFault("this request cannot be handed out twice")


def _heard(processor: Any, asked: set[str]) -> Any:
    """A slot that notes for which headers it is asked."""
    look = processor.get_request_property

    def get_request_property(key: Any) -> Any:
        asked.add(str(key).lower())
        return look(key)

    processor.get_request_property = get_request_property
    return processor


class BatchSlots:
    """One batch as the server gave it. A row that cannot be given to theirs is a SlotError: theirs is not asked for it.

    names: what the log calls the requests; by their ids where there are none.
    again: requests that were answered before, in the context of another batch; nothing that theirs counts of them is kept.
    miscounted: whether theirs gave another number of answers than it was given rows. too_few_or_many: for which slots, and how
    many; None where it gave no answer, or an error only.
    asked: gets the names of the headers that theirs asks for; None: nobody wants to know.
    """

    def __init__(
        self, raw: Any, rows: Sequence[Any], held: HeldMetrics, names: Sequence[str] = (), again: Sequence[KeptSlot] = ()
    ) -> None:
        self.raw, self.held, self.again = raw, held, again
        self.servers = raw.request_ids, raw.request_processor
        self.ids = {i: one.identity for i, one in enumerate(again)} if again else dict(raw.request_ids or {})
        self.processors = [one.processor for one in again] or list(raw.request_processor)
        self.names = list(names) or [str(self.ids.get(i)) for i in range(self.n)]
        self.headers = [keep(processor.get_request_properties()) for processor in self.processors]
        self.rows = [_kept(row) for row in rows]
        self.unseen: list[Any] = list(rows)  # each may be given out once as it is
        self.asked: set[str] | None = None
        self.miscounted = False
        self.too_few_or_many: tuple[Sequence[int], int] | None = None
        self.verdicts: dict[int, SlotError] = {}  # what a slot is answered that theirs failed on alone

    @property
    def n(self) -> int:
        """How many slots there are."""
        return len(self.processors)

    def all_names(self) -> str:
        """Every request's name, for the log."""
        return ", ".join(self.names)

    def enter(self, slots: Sequence[int]) -> list[Any]:
        """Show theirs only these slots; returns their rows."""
        fresh = [self.fresh(i) for i in slots]
        self.raw.request_processor = fresh if self.asked is None else [_heard(one, self.asked) for one in fresh]
        self.raw.request_ids = ids = {k: self.ids.get(i) for k, i in enumerate(slots)}
        self.held.begin(self.raw, ids)
        return [self._row(i) for i in slots]

    def _row(self, i: int) -> Any:
        unseen, self.unseen[i] = self.unseen[i], None
        return given(self.rows[i]) if unseen is None else unseen

    def keep(self) -> None:
        """The attempt succeeded: its metrics may go."""
        if not self.again:
            self.held.keep(self.raw)
        else:
            self.held.drop(self.raw)

    def drop(self) -> None:
        """The attempt failed: nothing of it is left."""
        self.held.drop(self.raw)

    def restore(self, processors: Sequence[Any] | None = None) -> None:
        """Give the context back to the server, with what is to be sent in its slots; without that as it was."""
        ids, before = self.servers
        self.held.end(self.raw, ids)
        self.raw.request_processor = before if processors is None else list(processors)
        self.raw.request_ids = ids

    def fresh(self, i: int) -> Any:
        """Slot i as the server made it: nothing set."""
        return type(self.processors[i])(given(self.headers[i]))

    def kept_slot(self, i: int) -> KeptSlot:
        """Slot i for later."""
        return KeptSlot(self.names[i], self.ids.get(i), self.fresh(i), self.rows[i])

    def answered(self, i: int, answer: Owned) -> Any:
        """Slot i with what theirs set for it."""
        processor = self.fresh(i)
        processor.report_status(answer.status, answer.phrase)
        for name, value in answer.headers:
            processor.add_response_property(name, value)
        return self._named(i, processor)

    def refused(self, i: int, error: SlotError) -> Any:
        """Slot i with an error's status."""
        processor = self.fresh(i)
        processor.report_status(error.code, PHRASES.get(error.code, ""))
        processor.add_response_property("content-type", "application/json")
        return self._named(i, processor)

    def _named(self, i: int, processor: Any) -> Any:
        """Slot i with what its request is known by."""
        for name, value in sent_back(Headers(self.headers[i]).get(REQUEST_ID, "")).items():
            processor.add_response_property(name, value)
        return processor
