"""One row: an item on its way through the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.worker.answer import Refusal
from slotwise.worker.slot_errors import Unavailable

NOT_RUN = Refusal.of(Unavailable("there was no time left to run this row"))


@dataclass(eq=False)
class Row:
    """One item, and what became of it.

    owner: the slot of the request that it belongs to. item: what the model was asked last. decoded: the same as it was decoded,
    where a hook may have changed `item`; None where no hook has seen it. output: what the model gave, where `error` is None.
    error: why there is no output. result: what `encode` made of the output, or its refusal.
    """

    owner: int
    item: object
    decoded: object = field(default=None, init=False)
    output: object = field(default=None, init=False)
    error: Refusal | None = field(default=NOT_RUN, init=False)
    result: object = field(default=None, init=False)

    def ran(self, output: object) -> None:
        """Take what the model gave: a value that is nobody else's, or the row's own refusal."""
        if isinstance(output, Refusal):
            self.refuse(output)
        else:
            self.output, self.error = output, None

    def refuse(self, error: Refusal) -> None:
        """There is no output, and this is why."""
        self.output, self.error = None, error
