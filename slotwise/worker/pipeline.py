"""Answer n requests with n answers, whatever some of the requests or the handler's author do wrong.

    n requests --decode--> m items --groups, collate, pad--> [b, ...] --predict--> b outputs
        --encode--> results --respond--> n answers

A pipeline knows no server. A host (worker/hosts/) turns what its server gives into requests, and turns the answers into what
its server wants.

Letters: n requests, and request i has slot i; m items, one a row, and owners[row] is the row's slot; b rows of one call of the
model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.worker.admission import admit, quickest_first
from slotwise.worker.answer import Answer, CheckedHeaders, refusal, sound
from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget
from slotwise.worker.decoders import MAX_STUCK, Decoders
from slotwise.worker.hooks import Hooks
from slotwise.worker.isolation import NOT_RUN, EngineDead, Isolation
from slotwise.worker.padding import Padding
from slotwise.worker.proof import keep_rows_apart
from slotwise.worker.request import Request
from slotwise.worker.settings import Settings
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, SlotError, Unavailable
from slotwise.worker.turns import divide, helpings, in_turn
from slotwise.worker.verdict import Verdict

if TYPE_CHECKING:
    from slotwise.worker.handler import BatchHandler

logger = logging.getLogger(__name__)


class Pipeline:
    """Answers batches with one handler whose engine is loaded.

    handler: `start` has set its `settings` and `engine`.
    verdict: what is known of whether its rows keep apart.
    dead: whether the host should end this worker, because the engine failed for good or too many decoders never end.
    """

    def __init__(self, handler: BatchHandler) -> None:
        self.handler = handler
        self.settings = handler.settings
        self.hooks = Hooks(handler, self.settings.max_response_bytes)
        self.padding = Padding(self.settings.padding, handler.max_rows or self.settings.batch_size)
        self.isolation = Isolation(self.hooks.attempt, self.padding, self._alive, self.hooks.release)
        self.decoders = Decoders(self.settings.decode_threads)
        self.verdict = Verdict(None, "it was not tried")
        self.dead = False

    @classmethod
    def start(cls, handler: BatchHandler, model_dir: Path, settings: Settings) -> Pipeline:
        """Load the handler's engine and warm it up. Raises what the handler raises."""
        handler.settings = settings
        handler.engine = handler.load(model_dir, settings)
        verdict = keep_rows_apart(handler, model_dir)
        pipeline = cls(handler)
        pipeline.verdict = verdict
        if (item := handler.example()) is not None:
            pipeline.isolation.prepare(item, getattr(handler.engine, "warm_up_runs", 1))
        return pipeline

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Answer one batch: exactly one answer a request, in order. Raises nothing of a handler's."""
        return self.run(requests).answers

    def run(self, requests: Sequence[Request]) -> Batch:
        """As `answer`, but returns the whole batch: its answers, and what they cost."""
        started = time.perf_counter()
        batch = Batch(requests)
        budget = Budget(batch.n, self.settings.response_timeout_s, self.settings.decode_budget_ms, self.decoders.threads)
        try:
            self.decode(batch, budget)
            decoded = time.perf_counter()
            self.predict(batch, budget)
            batch.decode_ms = (decoded - started) * 1000
            batch.inference_ms = (time.perf_counter() - decoded) * 1000
            self.encode(batch, budget)
            self.respond(batch, budget)
        except Exception:
            logger.exception("requests %s: the worker itself failed on them", ", ".join(batch.ids()))
            fault = ModelFault("the handler failed")
            # Without a slot's number: the gateway takes it for the server's own failure, and tries again.
            batch.answers = [refusal(error or fault, CheckedHeaders()) for error in batch.errors]
        if self.decoders.stuck() > MAX_STUCK:  # this batch is answered, but the next one would find no thread
            logger.error("requests %s: too many decoders never end: this worker ends", ", ".join(batch.ids()))
            self.dead = True
        batch.total_ms = (time.perf_counter() - started) * 1000
        return batch

    def decode(self, batch: Batch, budget: Budget) -> None:
        """Decode every request by itself: `batch.items` are the rows, and what cannot be decoded is that slot's error."""
        estimated = self.hooks.estimates or any("content-encoding" in request.headers for request in batch.requests)
        costs = admit(batch, budget, self.hooks.cost) if estimated else {}
        slots = [i for i, error in enumerate(batch.errors) if error is None]
        light, heavy = quickest_first(batch, slots, costs, budget)
        decoded = self._decode_together(batch, light, budget)
        for i in heavy:  # one at a time: together they would take too much memory
            if budget.over(budget.decode_until):
                break
            decoded |= self._decode_together(batch, [i], budget)
        for i in slots:
            items = decoded.get(i)
            if isinstance(items, list):
                batch.accept(i, items)
            else:
                batch.reject(i, items or Unavailable("there was no time left to decode this body"))

    def _decode_together(self, batch: Batch, slots: list[int], budget: Budget) -> dict[int, Any]:
        """Decode the requests of these slots side by side: the items of each, its SlotError, or None where time ran out."""
        requests = [batch.requests[i] for i in slots]
        items = self.decoders.run(self.hooks.decode, requests, budget.decode_share_s, budget.decode_until)
        return dict(zip(slots, items, strict=True))

    def predict(self, batch: Batch, budget: Budget) -> None:
        """Run the rows group by group; `batch.outputs[row]` is the row's output or its SlotError."""
        if self.dead:
            batch.outputs = [Unavailable("this worker is being restarted")] * batch.m
            return
        batch.outputs = [NOT_RUN] * batch.m
        try:
            for rows in helpings(batch.owners, self.padding.max_rows):
                if budget.over(budget.predict_until):
                    return
                groups, ungrouped = divide(self.handler.groups, batch.items, rows, batch.owners)
                if ungrouped:
                    logger.error("requests %s: groups() failed on their rows", ", ".join(batch.ids(ungrouped)))
                for row in ungrouped:
                    batch.outputs[row] = ModelFault("the handler could not group this row")
                for group in groups:
                    self._run_group(batch, group, budget)
        except EngineDead:
            logger.exception("requests %s: the engine is dead: this worker ends", ", ".join(batch.ids()))
            dead = Unavailable("the model's engine failed and is being restarted")
            # What was not run is Unavailable; a handler's own 503 reads the same.
            batch.outputs = [dead if isinstance(output, Unavailable) else output for output in batch.outputs]
            self.dead = True

    def encode(self, batch: Batch, budget: Budget) -> None:
        """Encode every row by itself, the requests taking turns, and give each result to the request that owns the row."""
        results = list(batch.outputs)
        for row in in_turn(batch.owners):
            if isinstance(results[row], SlotError):
                continue
            if budget.over(budget.encode_until):
                results[row] = Unavailable("there was no time to encode this row")
            else:
                results[row] = self.hooks.encode(results[row], batch.items[row], batch.requests[batch.owners[row]])
        batch.scatter(results)

    def respond(self, batch: Batch, budget: Budget) -> None:
        """Make every slot's answer by itself: `batch.answers`."""
        headers = self.hooks.headers()
        headers_error = headers if isinstance(headers, SlotError) else None  # for every slot without an error of its own
        shared = CheckedHeaders() if isinstance(headers, SlotError) else headers
        shared["x-batch-size"] = str(batch.n)
        shared["x-decode-ms"], shared["x-inference-ms"] = f"{batch.decode_ms:.2f}", f"{batch.inference_ms:.2f}"
        answers: dict[int, Answer] = {}
        lengths = [len(results) for results in batch.results]
        for i in sorted(range(batch.n), key=lengths.__getitem__):  # a short one waits for no long one
            request = batch.requests[i]
            slot_headers = shared.with_slot(i)
            error = batch.errors[i] or headers_error
            if error is None and budget.over(budget.encode_until):
                error = Unavailable("there was no time to encode this answer")
            outcome = error or self.hooks.answer(request, batch.results[i], slot_headers)
            if isinstance(outcome, SlotError):
                outcome = refusal(outcome, slot_headers)
                logger.info("request %s: %d %.200a", request.id, outcome.status, outcome.body)
            answers[i] = outcome
        batch.answers = [answers[i] for i in range(batch.n)]

    def _run_group(self, batch: Batch, group: list[int], budget: Budget) -> None:
        """Run one group's rows, except those whose deadline has passed."""
        now = time.time()
        due = []
        for row in group:
            deadline_s = batch.requests[batch.owners[row]].deadline_s
            if deadline_s is not None and now > deadline_s:
                batch.outputs[row] = DeadlineExceeded("the deadline passed before the model ran")
            else:
                due.append(row)
        items = [batch.items[row] for row in due]
        outputs = self.isolation.run(items, budget.predict_until, batch.tally, lambda: ", ".join(batch.ids(due)))
        for row, output in zip(due, outputs, strict=True):
            batch.outputs[row] = sound(output) if isinstance(output, SlotError) else output

    def _alive(self) -> bool:
        return self.hooks.alive(1)  # every engine is prepared for one row
