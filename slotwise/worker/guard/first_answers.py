"""Where nothing is proven of theirs, ask the requests of its first batches again, alone, before they are answered.

A guard sees what raises; who mixes rows answers everybody, with 200. Where a request gets something else alone, each time, and
something else again at its place among copies of itself, its batch-mates have changed its answer. Then theirs gets one request
at a time, and those of this batch get what they got alone. So it does where its place, or how many there are, moves numbers or
words. A batch of requests of a new kind is looked at whenever it comes: with an option that theirs may take for all, say.

Each is asked as things were before its batch came, so that what theirs keeps by a request's content hides nothing, and is not
counted twice. What another kernel rounds is within the tolerance, and what is another one each time says nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slotwise.worker.answer import serialise
from slotwise.worker.guard.owned import Owned, numbers
from slotwise.worker.guard.slots import BatchSlots, KeptSlot
from slotwise.worker.separability.apart import ANYTHING, KERNELS, apart, hidden, steady
from slotwise.worker.separability.audit import AuditedAnswer, parsed
from slotwise.worker.separability.kinds import AskingAgain
from slotwise.worker.separability.told_apart import KindsOfRequests
from slotwise.worker.slot_errors import SlotError

logger = logging.getLogger(__name__)

FIRST = 8  # batches of which all requests are asked again
SHARE = 0.25  # of the time that a batch may take, for asking again
PADDED = 0.005  # so far padding moves a row's numbers
ROUNDED = 0.02  # so far kernels for less precise numbers are apart
TIMES = 3  # that it has to be so: a duration in milliseconds is the same again now and then
SAYS_NOTHING = (503, 507)  # there was no time, or no memory

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
        self.ask, self.timeout_s, self.clock = ask, timeout_s, clock
        self.turns = AskingAgain(FIRST, budget_s)
        self.requests = KindsOfRequests()

    def is_due(self, rows: Sequence[Any], headers: Sequence[Mapping[str, Any]], asked: set[str]) -> bool:
        """Whether a batch of these rows, which theirs has not seen yet, is to be looked at. asked: for which headers."""
        try:
            self.turns.begin(self.requests.kinds(rows, headers, asked, self.turns.count < FIRST))
        except RecursionError:
            self.turns.new = set()
        return len(rows) > 1 and self.turns.due

    def pass_by(self, outputs: Sequence[Output]) -> None:
        """Count a batch that is not looked at."""
        self.turns.count += [type(output) is Owned for output in outputs].count(True) > 1

    def look(
        self, slots: BatchSlots, outputs: Sequence[Output], took_s: float, back: Callable[[], None] = lambda: None
    ) -> list[Output] | None:
        """What the requests of a batch get instead, where theirs is to get one at a time; None where all is well.

        back(): has theirs as it was before the batch.
        """
        answered = [i for i, output in enumerate(outputs) if type(output) is Owned]
        if len(answered) < 2:
            return None
        asked = self.turns.taken(answered)
        for some in (asked, asked[-1:]):
            if some and took_s * (len(some) + 2) <= SHARE * self.timeout_s:
                break
        else:
            return None
        began = self.clock()
        try:
            batch = _AnsweredBatch(self.ask, slots, outputs, answered, back)
            alone = batch.one_by_one(outputs) if any(batch.changes(i) for i in some) else None
        finally:
            self.turns.left_s -= self.clock() - began
        if alone is None:
            return None
        logger.warning(
            "requests %s: an answer is another one beside others than alone: the handler gets one request at a time now",
            slots.all_names(),
        )
        return alone


class _AnsweredBatch:
    """One batch that was answered, to be asked again. answered: the slots that have an answer."""

    def __init__(
        self,
        ask: Callable[[Sequence[KeptSlot], Any], list[Output]],
        slots: BatchSlots,
        outputs: Sequence[Output],
        answered: Sequence[int],
        back: Callable[[], None],
    ) -> None:
        self.ask, self.raw, self.back, self.slots = ask, slots.raw, back, answered
        self.kept = [slots.kept_slot(i) for i in answered]
        self.once_more: list[Any] | None = None
        if len(answered) == len(outputs):
            self.beside = [told(outputs[i]) for i in answered]
        else:  # nobody knows in which part of the batch each has been answered
            self.beside = self.asked(self.kept)

    def asked(self, requests: Sequence[KeptSlot]) -> list[Any]:
        """What these get together, as things were before the batch."""
        self.back()
        return list(map(told, self.ask(requests, self.raw)))

    def changes(self, slot: int) -> bool:
        """Whether this one's answer is what its mates, its place or their number make of it."""
        place = self.slots.index(slot)
        kept, beside = self.kept[place], self.beside[place]
        alone = self.asked([kept])[0]
        if apart(alone, beside).within(KERNELS):
            return False
        again = told(self.ask([kept], self.raw)[0])  # with what the first time has left: what came before may count
        self.once_more = self.once_more or self.asked(self.kept)
        once_more = self.once_more
        for _ in range(TIMES):
            alone = steady(alone, again)
            if not self._differs(alone, beside, steady(beside, once_more[place]), place):
                return False
            again, once_more = self.asked([kept])[0], self.asked(self.kept)
        return True

    def _differs(self, alone: Any, beside: Any, each_time: Any, place: int) -> bool:
        """Whether what it says alone is another thing than beside its mates. each_time: what it says beside them each time."""
        if apart(alone, beside).within(KERNELS):
            return False
        copies = self.asked([self.kept[place]] * len(self.kept))
        of_one_size = len({_sizes(one.row()) for one in self.kept}) == 1  # else its mates may have padded it
        near = (KERNELS, 0.0) if of_one_size else (PADDED, PADDED)
        if apart(alone, copies[place]).within(KERNELS):  # it is not how many there are
            return not apart(alone, beside).within(*near)
        each_time = hidden(each_time, alone)
        if not apart(copies[place], each_time).within(*near):
            return True
        moved = apart(alone, each_time)
        return moved.floats > ROUNDED or (moved.words and apart(hidden(copies[0], each_time), copies[place]).words)

    def one_by_one(self, outputs: Sequence[Output]) -> list[Output] | None:
        """What each gets alone, one after the other; None where that is what they have got: what came before has counted."""
        self.back()
        alone = dict(zip(self.slots, [self.ask([one], self.raw)[0] for one in self.kept], strict=True))
        if all(apart(told(one), told(outputs[i])).within(KERNELS) for i, one in alone.items()):
            return None
        return [alone.get(i, output) for i, output in enumerate(outputs)]


def told(answer: Output) -> Any:
    """An answer as it is compared: its status, its headers, and what its body says."""
    if isinstance(answer, SlotError):
        return ANYTHING if answer.code in SAYS_NOTHING else [str(answer.code), {}, parsed(serialise(answer.body()))]
    body = numbers(answer.body) if answer.tensor else parsed(answer.body)
    if type(body) is bytes:
        body = body.decode("utf-8", "surrogateescape")
    return [str(answer.status), {name.lower(): value for name, value in answer.headers}, body]


def _sizes(value: Any) -> object:
    """How long texts and lists are, wherever they are in a row."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict):
        return tuple((name, _sizes(part)) for name, part in value.items())
    return (len(value), frozenset(map(_sizes, value))) if isinstance(value, list) else None


def comparable(answer: Output) -> AuditedAnswer:
    """An answer as the audit compares it: a tensor by its numbers."""
    if isinstance(answer, SlotError):
        return AuditedAnswer(answer.code, None, serialise(answer.body()))
    body = json.dumps(numbers(answer.body)).encode() if answer.tensor else answer.body
    return AuditedAnswer(answer.status, dict(answer.headers).get("content-type"), body)
