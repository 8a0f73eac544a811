"""Answer a batch with a stranger's handler: whole where that works, else isolated, and always exactly one answer a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from slotwise.worker.answer import Refusal, serialise
from slotwise.worker.batch import NOT_RUN, Row, Tally
from slotwise.worker.budget import Budget
from slotwise.worker.copies import share
from slotwise.worker.familiar.own_state import Undoing
from slotwise.worker.guard.blame import one_for_all, tells_of_an_error, verdict
from slotwise.worker.guard.device import device_alive, let_go, release
from slotwise.worker.guard.first_answers import FirstAnswers, comparable
from slotwise.worker.guard.held_metrics import HeldMetrics
from slotwise.worker.guard.micro_batching import entry_of
from slotwise.worker.guard.owned import Miscounted, Owned, WrongAnswer, one_each, owned
from slotwise.worker.guard.slots import BatchSlots, KeptSlot
from slotwise.worker.isolation import EngineDead, Isolation, is_out_of_memory
from slotwise.worker.padding import Padding
from slotwise.worker.separability.audit import Audit
from slotwise.worker.slot_errors import SlotError, Unavailable

logger = logging.getLogger(__name__)

LARGEST = 1 << 16  # rows at once: whatever the server calls a batch
NO_DEVICE = Unavailable("the model's device failed; the worker is being restarted")
SINGLY_AFTER = 3  # batches in a row that theirs answered only one request at a time
SINGLY_S = 60.0  # so long no batch is tried, then one again


class Guard:
    """`theirs(rows, context)` with every request in a slot of its own. `dead`: the device failed for good.

    bad_input: further classes of exceptions that tell of bad input. tensors: results may be torch tensors, as on TorchServe.
    together: False where answers may depend on who shares their batch: then theirs gets one request at a time.
    """

    def __init__(
        self,
        theirs: Callable[[Any, Any], Any],
        held: HeldMetrics,
        bad_input: Collection[str] = (),
        *,
        response_timeout_s: float = 120.0,
        max_response_bytes: int | None = None,
        tensors: bool = True,
        together: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.theirs, self.held, self.bad_input, self.tensors, self.clock = theirs, held, bad_input, tensors, clock
        self.response_timeout_s, self.max_response_bytes = response_timeout_s, max_response_bytes
        self.isolation = Isolation(self._attempt, Padding("none", LARGEST), device_alive, release, clock)
        self.audit: Audit | None = None
        self.first_answers: FirstAnswers | None = None
        self.dead = False
        self.together = together
        self.undoing = Undoing(entry_of(theirs))
        self.singly, self.singly_until = 0, 0.0
        self.asked = set[str]()  # the headers that theirs asks for

    def answer(self, rows: Sequence[Any], raw: Any, names: Sequence[str] = ()) -> list[bytes]:
        """One body a request; its status and headers are set in the context.

        names: what the log calls the requests, where that is not the ids that theirs sees.
        """
        slots = BatchSlots(raw, rows, self.held, names)
        outputs = self._looked_at(slots)
        bodies: list[bytes] = []
        processors: list[Any] = []
        for i, output in enumerate(outputs):
            if isinstance(output, SlotError):
                logger.info("request %s: %d %.200a", slots.names[i], output.code, output.message)
                processors.append(slots.refused(i, output))
                bodies.append(serialise({"error": {"code": output.code, "message": output.message}}))
            else:
                processors.append(slots.answered(i, output))
                bodies.append(output.body)
        slots.restore(processors)
        if self.audit is not None:
            self.audit.keep(_audited(slots, outputs))
        return bodies

    def audit_with(self, rate: float, raw: Any, count: Callable[[str, int], None]) -> Audit:
        """Have this share of the requests answered again, alone: the audit that is to be run between two batches."""
        self.audit = Audit(rate, lambda slot: comparable(self._again([slot], raw)[0]), count)
        return self.audit

    def look_at_first_answers(self, budget_s: float) -> None:
        """Ask the first batches' requests again, alone: nothing is proven of theirs. budget_s: how long, all together."""
        self.first_answers = FirstAnswers(self._again, budget_s, self.response_timeout_s, self.clock)

    def _again(self, kept: Sequence[KeptSlot], raw: Any) -> list[Owned | SlotError]:
        """What theirs gives for requests that were answered before, together."""
        slots = BatchSlots(raw, [one.row() for one in kept], self.held, [one.name for one in kept], again=kept)
        try:
            return self._outputs(slots)
        finally:
            slots.restore()

    def _looked_at(self, slots: BatchSlots) -> list[Owned | SlotError]:
        """What theirs gave for each slot; where that is seen to depend on its mates, what each got alone."""
        began, first = self.clock(), self.first_answers
        if first is None or not self.together or began < self.singly_until:
            return self._outputs(slots)
        slots.asked = self.asked
        before = self.undoing.now() if first.is_due(slots.unseen, slots.headers, self.asked) else None
        outputs = self._outputs(slots)
        if self.dead or before is None:
            first.pass_by(outputs)
            return outputs
        try:
            after, took_s = self.undoing.now(), self.clock() - began
            back = after if before.has_made() else before
            alone = first.look(slots, outputs, took_s, back.put_back)
            if alone is None:
                after.put_back()
        except Exception:  # theirs may keep an object that answers with anything
            logger.warning("requests %s cannot be asked again", slots.all_names(), exc_info=True)
            return outputs
        self.together = self.together and alone is None
        return alone or outputs

    def _outputs(self, slots: BatchSlots) -> list[Owned | SlotError]:
        """What theirs gave, or a SlotError, for each slot."""
        budget = Budget(slots.n, self.response_timeout_s, 0, clock=self.clock)
        outputs: list[Owned | SlotError] = [NO_DEVICE] * slots.n
        tally = Tally()
        try:
            for group in self._groups(slots, outputs):
                rows = [Row(i, slots) for i in group]
                try:
                    self.isolation.run(rows, budget.predict_until, tally, slots.all_names)
                finally:  # who was answered before the device died keeps that
                    for row in rows:
                        outputs[row.owner] = _outcome(row, slots)
        except EngineDead:
            logger.exception("the device is dead: this worker ends")
            self.dead = True
        if not slots.again:
            self._learn(slots, tally, outputs)
        return outputs

    def _groups(self, slots: BatchSlots, outputs: list[Owned | SlotError]) -> list[list[int]]:
        """Which slots go to theirs together: all of them, but those that theirs would take for another route."""
        together: list[int] = []
        alone: list[list[int]] = []
        for i, (headers, row) in enumerate(zip(slots.headers, slots.rows, strict=True)):
            if isinstance(row, SlotError):
                outputs[i] = row
            elif headers.get("explain") == "True" or headers.get("describe") == "True":  # theirs look at slot 0's only
                alone.append([i])
            else:
                together.append(i)
        if not self.together or self.clock() < self.singly_until:
            return [[i] for i in together] + alone
        return ([together] if together else []) + alone

    def _attempt(self, attempted: list[Row], size: int) -> None:
        """Theirs on some slots: each gets what it gave; raises what it raised, or for one slot alone what its client gets."""
        slots: Any = attempted[0].item
        group = [row.owner for row in attempted]
        if slots.miscounted and len(group) > 1:
            raise Miscounted("it has given another number of answers: as many as these may be one request's")
        rows = slots.enter(group)
        try:
            with self.undoing(slots.raw):
                results = one_each(self.theirs(rows, slots.raw), len(group))
                if len(group) > 1 and share(results):
                    raise WrongAnswer(
                        "several answers share a dict, a list or memory: a copy for each, or a tuple, goes in batches"
                    )
                given = zip(results, slots.raw.request_processor, strict=True)
                answers = [owned(result, processor, self.tensors, self.max_response_bytes) for result, processor in given]
                if one_for_all(answers):
                    raise WrongAnswer("several have been given one error, which may be one request's")
                slots.keep()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's sys.exit() is no reason to end the worker
            if isinstance(error, Miscounted) and len(group) > 1:
                self._miscounted(slots, group, error.given)
                error.given = ()  # so that their memory is free
            slots.drop()
            let_go(error)
            if len(group) == 1 and not is_out_of_memory(error):
                slots.verdicts[group[0]] = verdict(error, self.bad_input, slots.rows[group[0]])
                raise slots.verdicts[group[0]] from error
            raise
        for row, answer in zip(attempted, answers, strict=True):
            row.ran(Refusal.of(answer) if isinstance(answer, SlotError) else answer)

    def _miscounted(self, slots: BatchSlots, group: Sequence[int], given: Sequence[Any]) -> None:
        """Note that theirs gave these answers to this group; an error for all of them says nothing of how it counts."""
        slots.miscounted = True
        answers = [owned(one, slot, self.tensors) for one, slot in zip(given, slots.raw.request_processor, strict=False)]
        if any(type(one) is Owned and not tells_of_an_error(one) for one in answers):
            slots.too_few_or_many = group, len(given)

    def _learn(self, slots: BatchSlots, tally: Tally, outputs: Sequence[Owned | SlotError]) -> None:
        """A handler that answers no two requests together, but each alone, is not asked for batches for a while.

        Nor ever again where it gave another number of answers than those have that it answers alone: it left out none that is
        bad. A request of several parts may come, with as many answers as there are requests.
        """
        if slots.n < 2 or not self.together or self.clock() < self.singly_until:
            return
        good = [type(one) is Owned and not tells_of_an_error(one) for one in outputs]
        self.singly = self.singly + 1 if tally.cuts == slots.n - 1 and all(good) else 0
        if slots.too_few_or_many is not None:
            group, count = slots.too_few_or_many
            self.together = count == sum(good[i] for i in group)
        if self.singly >= SINGLY_AFTER:
            self.singly_until = self.clock() + SINGLY_S
        if self.singly == SINGLY_AFTER or not self.together:
            logger.warning("the handler answers no batches: from now on it gets one request at a time")


def _outcome(row: Row, slots: BatchSlots) -> Owned | SlotError:
    """What theirs gave for one slot, or why there is nothing; a verdict may have a status that HTTP does not know."""
    if row.error is NOT_RUN:
        return NOT_RUN.error()
    if row.error is not None:
        return slots.verdicts.get(row.owner, row.error.source)
    assert isinstance(row.output, Owned)
    return row.output


def _audited(slots: BatchSlots, outputs: Sequence[Owned | SlotError]) -> Iterator[Any]:
    """What theirs answered, for the audit to draw from; a refusal was decided alone."""
    for i, output in enumerate(outputs):
        if type(output) is Owned:
            yield slots.names[i], lambda i=i, output=output: (slots.kept_slot(i), comparable(output))
