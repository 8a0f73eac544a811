"""Where nothing is proven of theirs, ask the requests of its first batches again, alone, before they are answered.

A guard sees what raises; who mixes rows answers everybody, with 200. Where a request gets something else alone, each time, and
something else again at its place among copies of itself, its batch-mates have changed its answer. Then theirs gets one request
at a time, and those of this batch get what they got alone. What another kernel rounds is within `agree`'s tolerance, and what
only the batch's size changes is the same among copies.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from slotwise.worker.answer import serialise
from slotwise.worker.guard.owned import Owned, numbers
from slotwise.worker.guard.slots import BatchSlots, KeptSlot
from slotwise.worker.separability.audit import AuditedAnswer
from slotwise.worker.slot_errors import SlotError

logger = logging.getLogger(__name__)

FIRST = 8  # batches of which all requests are asked again; then of those whose number is a power of two the last one
SHARE = 0.25  # of the time that a batch may take, for asking again

Output = Owned | SlotError


class FirstAnswers:
    """Looks at one handler's batches. ask: what theirs gives for these requests together. budget_s: seconds for the first."""

    def __init__(
        self,
        ask: Callable[[Sequence[KeptSlot], Any], list[Output]],
        budget_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ask, self.left_s, self.timeout_s, self.clock = ask, budget_s, timeout_s, clock
        self.count = 0

    def look(self, slots: BatchSlots, outputs: Sequence[Output], took_s: float) -> list[Output] | None:
        """What the requests of a batch get instead, where theirs is to get one at a time; None where all is well."""
        answered = [i for i, output in enumerate(outputs) if type(output) is Owned]
        if len(answered) < 2:
            return None
        self.count += 1
        whole = self.count <= FIRST and self.left_s > 0
        asked = answered if whole else [] if self.count & (self.count - 1) else answered[-1:]
        if took_s * (len(asked) + 2) > SHARE * self.timeout_s:
            return None
        began = self.clock()
        if not any(self._mates_change(slots, outputs, i) for i in asked):
            self.left_s -= self.clock() - began
            return None
        logger.warning(
            "requests %s: an answer is another one beside others than alone: the handler gets one request at a time now",
            slots.all_names(),
        )
        return [self.ask([slots.kept_slot(i)], slots.raw)[0] if i in answered else output for i, output in enumerate(outputs)]

    def _mates_change(self, slots: BatchSlots, outputs: Sequence[Output], i: int) -> bool:
        """Whether a request's answer is what its mates make of it. One that fails alone says nothing."""
        kept, beside = slots.kept_slot(i), comparable(outputs[i])
        alone = self.ask([kept], slots.raw)[0]
        if type(alone) is not Owned or beside.same(one := comparable(alone)):
            return False
        if not one.same(comparable(self.ask([kept], slots.raw)[0])):  # by chance, or with the time in it
            return False
        return not beside.same(comparable(self.ask([kept] * len(outputs), slots.raw)[i]))


def comparable(answer: Output) -> AuditedAnswer:
    """An answer as it is compared: a tensor by its numbers."""
    if isinstance(answer, SlotError):
        return AuditedAnswer(answer.code, None, serialise(answer.body()))
    body = json.dumps(numbers(answer.body)).encode() if answer.tensor else answer.body
    return AuditedAnswer(answer.status, dict(answer.headers).get("content-type"), body)
