"""Count what became of every request that a model's queue has admitted: each ends in exactly one way."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Outcome = Literal["answered", "refused", "gone"]


class Ledger:
    """The balance of one model. answered: a worker's answer. refused: by the queue, with a reason. gone: its client left."""

    def __init__(self) -> None:
        self.admitted = 0
        self.ended: Counter[Outcome] = Counter()
        self._open: set[int] = set()

    @property
    def open(self) -> int:
        """How many have not ended; 0 at rest."""
        return len(self._open)

    def admit(self, request_id: int) -> None:
        """A request is waiting. Raises ValueError where that id was seen before."""
        if request_id != self.admitted + 1:
            raise ValueError(f"request {request_id} was admitted out of turn")
        self.admitted = request_id
        self._open.add(request_id)

    def end(self, request_id: int, outcome: Outcome) -> None:
        """It has ended so. Raises KeyError where it had ended already."""
        self._open.remove(request_id)
        self.ended[outcome] += 1
