"""Keep track of which request owns which row.

n requests decode to m items; each item is one row. `owners[row]` is the index of the request that a row belongs to, and
`places[row]` is where its result stands among that request's results. Rows that padding adds behind the m rows have no owner,
and nobody reads them. An error stands where the answer would have stood: in `errors[i]` for a whole request, in `results[i]`
for one record of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slotwise.worker.answer import Answer
from slotwise.worker.isolation import Tally
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import SlotError


@dataclass
class Batch:
    """One batch on its way through the stages of the pipeline. It lives for one call, and nothing of it is kept.

    requests: the n requests. items: what they decoded to, m rows. owners: [m] the index of each row's request. places: [m]
    where each row's result stands among those of its request. outputs: [m] what the model gave, or the row's SlotError.
    answers: one a request. tally: how many rows the model ran. decode_ms, inference_ms, total_ms: milliseconds.
    """

    requests: Sequence[Request]  # [n]
    errors: list[SlotError | None] = field(init=False)  # [n]
    results: list[list[Any]] = field(init=False)  # [n][records] a result, or the record's SlotError
    items: list[Any] = field(default_factory=list)  # [m]
    owners: list[int] = field(default_factory=list)  # [m]
    places: list[int] = field(default_factory=list)  # [m]
    outputs: list[Any] = field(default_factory=list)  # [m] what the model gave, or the row's SlotError
    answers: list[Answer] = field(default_factory=list)  # [n]
    tally: Tally = field(default_factory=Tally)
    decode_ms: float = 0.0
    inference_ms: float = 0.0
    total_ms: float = 0.0

    def __post_init__(self) -> None:
        self.errors = [request.refused for request in self.requests]
        self.results = [[] for _ in self.requests]

    @property
    def n(self) -> int:
        """How many requests have to be answered."""
        return len(self.requests)

    @property
    def m(self) -> int:
        """How many rows the model has to answer."""
        return len(self.items)

    def accept(self, i: int, decoded: Sequence[Any]) -> None:
        """Take the items that request i decoded to. A SlotError among them stays in its record's place and costs no row."""
        for place, item in enumerate(decoded):
            if not isinstance(item, SlotError):
                self.items.append(item)
                self.owners.append(i)
                self.places.append(place)
        self.results[i] = list(decoded)

    def reject(self, i: int, error: SlotError) -> None:
        """Answer request i as a whole with this error."""
        self.errors[i] = error

    def scatter(self, results: Sequence[Any]) -> None:
        """Give every row's result (or SlotError) to the request that owns the row. results: [m], one a row."""
        if len(results) != self.m:
            raise ValueError(f"{len(results)} results for {self.m} rows")
        for owner, place, result in zip(self.owners, self.places, results, strict=True):
            self.results[owner][place] = result

    def ids(self, rows: Iterable[int] | None = None) -> list[str]:
        """The ids of all requests, or of those that own these rows, for the log."""
        slots = range(self.n) if rows is None else dict.fromkeys(self.owners[row] for row in rows)
        return [self.requests[i].id for i in slots]
