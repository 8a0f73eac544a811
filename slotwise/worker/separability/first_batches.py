"""Where nothing could be proven, ask rows of real batches again, alone: of the first batches all, of ever fewer later ones one.

Without an example nobody can try at the start whether its mates change what a row says. Traffic shows it. Where a row says
something else alone, rows run one by one from then on, and those of this batch say what each said alone.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from slotwise.worker.batch import NOT_RUN, Row
from slotwise.worker.hooks import Hooks, alike
from slotwise.worker.isolation import is_out_of_memory, row_error
from slotwise.worker.ownership import owned
from slotwise.worker.padding import Padding

logger = logging.getLogger(__name__)

FIRST = 16  # batches of which every row is asked again; then of those whose number is a power of two the first


class FirstBatches:
    """Runs the model for one handler. budget_s: seconds that the first batches may take longer, all together."""

    def __init__(self, hooks: Hooks, padding: Padding, budget_s: float) -> None:
        self.hooks, self.padding, self.left_s = hooks, padding, budget_s
        self.count, self.repeats = 0, True  # how many batches of several rows; whether a row alone says the same each time

    def attempt(self, rows: list[Row], size: int) -> None:
        """As `Hooks.attempt`. May raise anything that this raises."""
        self.hooks.attempt(rows, size)
        if len(rows) == 1 or not self.repeats:
            return
        self.count += 1
        whole = self.count <= FIRST and self.left_s > 0
        if not whole and self.count & (self.count - 1):
            return
        began = time.monotonic()
        same = True
        with suppress(Exception):  # of a row that fails alone nobody can tell
            same = all(map(self._says_the_same_alone, rows if whole else rows[:1]))
        if not same:
            self._one_by_one(rows)
        self.left_s -= time.monotonic() - began

    def _says_the_same_alone(self, row: Row) -> bool:
        if self._late():
            return True
        alone = self._alone(row)
        if alike(_said(alone), _said(row)):
            return True
        self.repeats = alike(_said(alone), _said(self._alone(row)))
        return not self.repeats

    def _alone(self, row: Row) -> Row:
        """A copy of the row that has run alone. May raise anything."""
        copy = Row(row.owner, owned(row.item if row.decoded is None else row.decoded))
        self.hooks.attempt([copy], self.padding.size(1, self.padding.max_rows))
        return copy

    def _one_by_one(self, rows: list[Row]) -> None:
        vars(self.hooks.handler)["max_rows"] = 1
        logger.warning("a row says something else beside other rows than alone: from now on rows run one by one")
        for row in rows:
            row.refuse(NOT_RUN)
            if self._late():
                continue
            try:
                alone = self._alone(row)
                row.output, row.error = alone.output, alone.error
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                row.refuse(row_error(error, is_out_of_memory(error)))

    def _late(self) -> bool:
        return time.monotonic() > self.hooks.handler.predict_until


def _said(row: Row) -> object:
    return row.output if row.error is None else row.error
