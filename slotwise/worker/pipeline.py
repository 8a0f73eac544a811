"""Answer n requests with n answers, whatever some of the requests or the handler's author do wrong.

    n requests --decode--> m items --groups, collate, pad--> [b, ...] --predict--> b outputs
        --encode--> results --respond--> n answers

A pipeline knows no server. A host (worker/hosts/) turns what its server gives into requests, and turns the answers into what
its server wants.

Letters: n requests, and request i has slot i; m items, one a row, and a row's owner is its slot, unless one client asks for
several of the requests (stages/); b rows of one call of the model.

What a hook returned is owned before any hook is called again, so nobody's value can become somebody else's (ownership.py).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from slotwise.worker.answer import REQUEST_ID, Answer, CheckedHeaders, Refusal
from slotwise.worker.batch import NOBODY_WAITS, NOT_ENCODED, NOT_RUN, TOO_MANY_GUILTY, Batch, Row, Slot
from slotwise.worker.budget import Budget
from slotwise.worker.decoding.admission import admit, quickest_first
from slotwise.worker.decoding.decoders import MAX_STUCK, Decoders
from slotwise.worker.environment.settings import Settings
from slotwise.worker.fair_order import divide, helpings, in_turn
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hooks import Hooks
from slotwise.worker.isolation import EngineDead, Isolation
from slotwise.worker.outputs import ROWS
from slotwise.worker.padding import Padding
from slotwise.worker.request import Request
from slotwise.worker.separability.first_batches import FirstBatches
from slotwise.worker.separability.proof import keep_rows_apart
from slotwise.worker.separability.verdict import Verdict
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, SlotError, Unavailable
from slotwise.worker.tensors.raw_numbers import RawNumbers

logger = logging.getLogger(__name__)


class Pipeline:
    """Answers batches with one handler whose engine is loaded.

    handler: `start` has set its `settings` and `engine`.
    timeout_s: of the next batch, for who has less time than the settings say.
    verdict: what is known of whether its rows keep apart.
    gone(): slots of the running batch whose answers nobody wants any more, where a host hears of that; for any thread.
    apart: whether a hook leaves something of a row for a later hook: each row goes through all of them before another begins.
    dead: whether the host should end this worker, because the engine failed for good, or too many decoders never end, or one
    that no other may run beside.
    """

    def __init__(self, handler: BatchHandler) -> None:
        self.handler = handler
        handler.predict_until = math.inf
        self.settings = handler.settings
        self.timeout_s = self.settings.response_timeout_s
        self.hooks = Hooks(handler, self.settings.max_response_bytes)
        self.padding = Padding(self.settings.padding, handler.max_rows or self.settings.batch_size)
        self.isolation = Isolation(self.hooks.attempt, self.padding, self._alive, self.hooks.release)
        self.decoders = Decoders(1 if handler._reads_alone else self.settings.decode_threads)
        self.raw = RawNumbers.of(handler)  # bodies that need no `decode`
        self.verdict = Verdict(None, "it was not tried")
        self.first_batches: FirstBatches | None = None  # where not everything is proven
        self.gone: Callable[[], Collection[int]] = tuple
        self.apart = self.dead = False

    @classmethod
    def start(cls, handler: BatchHandler, model_dir: Path, settings: Settings) -> Pipeline:
        """Load the handler's engine and warm it up. Raises what the handler raises."""
        handler.settings, handler.model_dir = settings, model_dir
        handler.engine = handler.load(model_dir, settings)
        apart = handler.leaves_for_later()
        if apart:
            vars(handler)["max_rows"] = 1
            logger.warning("so requests run one after the other")
        if handler.streams:
            return cls._of_streams(handler, apart)
        verdict = keep_rows_apart(handler, model_dir)
        pipeline = cls(handler)
        pipeline.verdict, pipeline.apart = verdict, apart
        pipeline.first_batches = FirstBatches.of(pipeline.hooks, pipeline.padding, verdict, model_dir)
        pipeline.isolation.prepare(pipeline.hooks.good_row, getattr(handler.engine, "warm_up_runs", 1))
        return pipeline

    @classmethod
    def _of_streams(cls, handler: BatchHandler, apart: bool) -> Pipeline:
        """Of a handler whose runner keeps its streams apart, and finds out itself who fails: the example is run once."""
        handler.settings = handler.settings.but(padding="none")
        pipeline = cls(handler)
        pipeline.verdict, pipeline.apart = Verdict(None, "each item is a stream, with a slot of its own"), apart
        pipeline.hooks.way = ROWS
        handler.predict([])  # starts its runner
        if (row := pipeline.hooks.good_row()) is not None:
            pipeline.hooks.attempt([row], 1)
            if row.error is not None:
                raise ValueError(f"the warm-up input fails: {row.error.message}")
        return pipeline

    def answer(self, requests: Sequence[Request], owners: Sequence[int] | None = None) -> list[Answer]:
        """Answer one batch: exactly one answer a request, in order. Raises nothing of a handler's.

        owners: whose each request is, where some belong together: they take turns as one, and too many guilty rows are theirs.
        """
        return self.run(requests, owners).answers

    def run(self, requests: Sequence[Request], owners: Sequence[int] | None = None) -> Batch:
        """As `answer`, but returns the whole batch: its answers, and what they cost."""
        if self.apart and len(requests) > 1:
            return self._run_apart(requests, owners)
        started = time.perf_counter()
        batch = Batch(requests, owners)
        budget = Budget(batch.n, self.timeout_s, self.settings.decode_budget_ms, self.decoders.threads)
        try:
            self.decode(batch, budget)
            decoded = time.perf_counter()
            self.predict(batch, budget)
            batch.decode_ms = (decoded - started) * 1000
            batch.inference_ms = (time.perf_counter() - decoded) * 1000
            self.respond(batch, budget)
        except Exception:
            logger.exception("requests %s: the worker itself failed on them", ", ".join(batch.ids()))
            fault = Refusal.of(ModelFault("the handler failed"))
            # Without a slot's number: the gateway takes it for the server's own failure, and tries again.
            for slot in batch.slots:
                slot.answer = slot.answer or (slot.error or fault).answer(CheckedHeaders())
        if self.decoders.stuck() > MAX_STUCK:  # this batch is answered, but the next one would find no thread
            logger.error("requests %s: too many decoders never end: this worker ends", ", ".join(batch.ids()))
            self.dead = True
        self.look_who_reads(batch)
        batch.total_ms = (time.perf_counter() - started) * 1000
        return batch

    def look_who_reads(self, batch: Batch) -> None:
        """Have this worker end where a decoder that runs alone does not end, although this batch is answered."""
        since = self.handler._read_alone_since
        if since is not None and time.monotonic() - since > self.timeout_s / 8:  # half of its time; a slow one ends
            logger.error("requests %s: a decoder that runs alone does not end: this worker ends", ", ".join(batch.ids()))
            self.dead = True

    def _run_apart(self, requests: Sequence[Request], owners: Sequence[int] | None) -> Batch:
        """As `run`, one request after the other, within the same time."""
        whole, gone, timeout_s = Batch(requests, owners), self.gone, self.timeout_s
        until = time.monotonic() + timeout_s
        try:
            for i, slot in enumerate(whole.slots):
                self.timeout_s = max(0.0, until - time.monotonic())
                self.gone = lambda i=i: (0,) if i in gone() else ()  # type: ignore[misc]
                one = self.run([slot.request])
                slot.answer = one.slots[0].answer
                whole.take_costs(one)
        finally:
            self.gone, self.timeout_s = gone, timeout_s
        return whole

    def decode(self, batch: Batch, budget: Budget) -> None:
        """Decode every request by itself: its rows, and what cannot be decoded is that slot's error."""
        if self.dead and self.handler._reads_alone:  # whoever is being read may keep all others out
            for i in [i for i, slot in enumerate(batch.slots) if slot.error is None]:
                batch.reject(i, Unavailable("this worker is being restarted"))
            return
        estimated = self.hooks.estimates or any(request.headers.encoding for request in batch.requests)
        costs = admit(batch, budget, self.hooks.cost) if estimated else {}
        open_slots = [i for i, slot in enumerate(batch.slots) if slot.error is None]
        decoded = self._read_at_once(batch, open_slots)
        light, heavy = quickest_first(batch, [i for i in open_slots if i not in decoded], costs, budget)
        decoded |= self._decode_together(batch, light, budget)
        for i in heavy:  # one at a time: together they would take too much memory
            if budget.over(budget.decode_until):
                break
            decoded |= self._decode_together(batch, [i], budget)
        for i in open_slots:
            items = decoded.get(i)
            if isinstance(items, list):
                batch.accept(i, items)
            else:
                batch.reject(i, items or Unavailable("there was no time left to decode this body"))

    def _read_at_once(self, batch: Batch, slots: list[int]) -> dict[int, list[object] | SlotError | None]:
        """The items of those requests that nobody's code is needed to read."""
        if self.raw is None or self.apart:
            return {}
        return {i: items for i in slots if (items := self.raw.read(batch.requests[i])) is not None}

    def _decode_together(self, batch: Batch, slots: list[int], budget: Budget) -> dict[int, list[object] | SlotError | None]:
        """Decode the requests of these slots side by side: the items of each, its SlotError, or None where time ran out."""
        requests = [batch.requests[i] for i in slots]

        def decode(request: Request) -> list[object] | SlotError:
            gone = self.gone()
            if gone and any(batch.requests[i] is request for i in gone if i < batch.n):
                return NOBODY_WAITS
            return self.hooks.decode(request)

        items = self.decoders.run(decode, requests, budget.decode_share_s, budget.decode_until)
        return dict(zip(slots, items, strict=True))

    def predict(self, batch: Batch, budget: Budget) -> None:
        """Run the rows group by group: each row then has its output or its error."""
        if self.dead:
            for row in batch.rows:
                row.refuse(Refusal.of(Unavailable("this worker is being restarted")))
            return
        self.handler.predict_until = budget.predict_until
        try:
            for helping in helpings(batch.rows, self.padding.max_rows):
                if budget.over(budget.predict_until):
                    return
                groups, ungrouped = divide(self.hooks.groups, helping)
                if ungrouped:
                    logger.error("requests %s: groups() failed on their rows", ", ".join(batch.ids(ungrouped)))
                for row in ungrouped:
                    row.refuse(Refusal.of(ModelFault("the handler could not group this row")))
                for group in groups:
                    most = self.handler.max_rows or len(group)  # it may have become less by what was seen
                    for at in range(0, len(group), most):
                        self._run_group(batch, group[at : at + most], budget)
        except EngineDead:
            logger.exception("requests %s: the engine is dead: this worker ends", ", ".join(batch.ids()))
            dead = Refusal.of(Unavailable("the model's engine failed and is being restarted"))
            for row in batch.rows:
                if row.error is NOT_RUN:
                    row.refuse(dead)
            self.dead = True
        finally:
            self.handler.predict_until = math.inf
        if hopeless := batch.tally.hopeless():  # as a whole: which of an owner's rows ran depends on who was in its batch
            for slot, owner in zip(batch.slots, batch.owners or range(batch.n), strict=True):
                slot.error = slot.error or (TOO_MANY_GUILTY if owner in hopeless else None)

    def _run_group(self, batch: Batch, group: list[Row], budget: Budget) -> None:
        """Run one group's rows, except those whose deadline has passed."""
        due = []
        for row in group:
            if batch.requests[row.slot].is_late:
                row.refuse(Refusal.of(DeadlineExceeded("the deadline passed before the model ran")))
            else:
                due.append(row)
        if self.first_batches:
            self.first_batches.begin(due)
        self.isolation.run(due, budget.predict_until, batch.tally, lambda: ", ".join(batch.ids(due)), self.gone)
        if self.apart or self.handler.max_rows == 1:  # what the model leaves on the handler is of this row only until the next
            for row in due:
                row.result = row.error or self.hooks.encode(row, batch.requests[row.slot], last=False)
        if self.first_batches:
            self.first_batches.look(due, batch.requests)

    def respond(self, batch: Batch, budget: Budget) -> None:
        """Encode every row by itself, the requests taking turns, and answer each request as soon as its last row is encoded."""
        headers = self.hooks.headers()
        shared = CheckedHeaders() if isinstance(headers, SlotError) else headers
        shared["x-batch-size"] = str(batch.n)
        shared["x-decode-ms"], shared["x-inference-ms"] = f"{batch.decode_ms:.2f}", f"{batch.inference_ms:.2f}"
        fault = Refusal.of(headers) if isinstance(headers, SlotError) else None  # for every slot without an error of its own
        for i, slot in enumerate(batch.slots):
            slot.error = slot.error or fault
            if slot.error is not None or not slot.unencoded:
                self._answer(slot, shared.with_slot(i, slot.request.headers.get(REQUEST_ID, "")), budget)
        for row in in_turn(batch.rows):
            slot = batch.slots[row.slot]
            if slot.answer is not None:
                continue
            slot.unencoded -= 1
            if row.error is None and budget.over(budget.encode_until):
                row.refuse(Refusal.of(Unavailable("there was no time to encode this row")))
            if row.error is not None or row.result is NOT_ENCODED:
                row.result = row.error or self.hooks.encode(row, slot.request, last=not slot.unencoded)
            if not slot.unencoded:
                self._answer(slot, shared.with_slot(row.slot, slot.request.headers.get(REQUEST_ID, "")), budget)

    def _answer(self, slot: Slot, headers: CheckedHeaders, budget: Budget) -> None:
        """Make one slot's answer."""
        if slot.error is None and budget.over(budget.encode_until):
            slot.error = Refusal.of(Unavailable("there was no time to encode this answer"))
        if slot.error is None:
            outcome = self.hooks.answer(slot.request, [record.result for record in slot.records], headers)
            if isinstance(outcome, Answer):
                slot.answer = outcome
                return
            slot.error = Refusal.of(outcome)
        logger.info("request %s: %d %.200a", slot.request.id, slot.error.status, slot.error.body)
        slot.answer = slot.error.answer(headers)

    def _alive(self) -> bool:
        until, self.handler.predict_until = self.handler.predict_until, math.inf
        try:
            return self.hooks.alive(1)  # every engine is prepared for one row
        finally:
            self.handler.predict_until = until
