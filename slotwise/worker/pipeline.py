"""Answer n requests with n answers, whatever some of the requests or the handler's author do wrong.

    n requests --decode--> m items --groups, collate, pad--> [b, ...] --predict--> b outputs
        --encode--> results --respond--> n answers

A pipeline knows no server. A host (worker/hosts/) turns what its server gives into requests, and turns the answers into what
its server wants. Letters: n requests, m items or rows, b rows of one call of the model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.worker.answer import Answer, CheckedHeaders, refusal, sound
from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget, Cost
from slotwise.worker.decoders import MAX_STUCK, Decoders
from slotwise.worker.hooks import Hooks
from slotwise.worker.isolation import NO_TIME, EngineDead, Isolation
from slotwise.worker.padding import Padding
from slotwise.worker.request import Request
from slotwise.worker.settings import Settings
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, SlotError, TooLarge, Unavailable
from slotwise.worker.turns import divide, helpings, in_turn

if TYPE_CHECKING:
    from slotwise.worker.handler import BatchHandler

logger = logging.getLogger(__name__)


class Pipeline:
    """Answers batches with one handler whose engine is loaded.

    handler: with its `settings` and `engine` set, see `start`. dead: whether the engine failed for good, or too many decoders
    never end; the host should then end this worker.
    """

    def __init__(self, handler: BatchHandler) -> None:
        self.handler = handler
        self.settings = handler.settings
        self.hooks = Hooks(handler, self.settings.max_response_bytes)
        self.padding = Padding(self.settings.padding, handler.max_rows or self.settings.batch_size)
        self.isolation = Isolation(self.hooks.attempt, self.padding, self._alive, self.hooks.release)
        self.decoders = Decoders(self.settings.decode_threads)
        self.dead = False

    @classmethod
    def start(cls, handler: BatchHandler, model_dir: Path, settings: Settings) -> Pipeline:
        """Load the handler's engine and run it at every size that will be served. Raises what the handler raises."""
        handler.settings = settings
        handler.engine = handler.load(model_dir, settings)
        pipeline = cls(handler)
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
            batch.answers = [refusal(error or fault, CheckedHeaders()) for error in batch.errors]
        if self.decoders.stuck() > MAX_STUCK:  # this batch is answered, but the next one would find no thread
            logger.error("requests %s: too many decoders never end: this worker ends", ", ".join(batch.ids()))
            self.dead = True
        batch.total_ms = (time.perf_counter() - started) * 1000
        return batch

    def decode(self, batch: Batch, budget: Budget) -> None:
        """Decode every request by itself: `batch.items` are the rows, and what cannot be decoded is that slot's error."""
        costs = self._estimate(batch, budget) if self.hooks.estimates else {}
        slots = [i for i, error in enumerate(batch.errors) if error is None]
        slots.sort(key=lambda i: _decode_order(costs.get(i), batch.requests[i]))  # a quick request waits for no slow one
        heavy = [i for i in slots if budget.heavy(costs[i])] if costs else []
        light = [i for i in slots if i not in heavy] if heavy else slots
        decoded = self._decode_together(batch, light, budget)
        for i in heavy:  # one at a time: together they would take too much memory
            if budget.over(budget.decode_until):
                break
            decoded |= self._decode_together(batch, [i], budget)
        for i in sorted(slots):
            items = decoded.get(i)
            if isinstance(items, list):
                batch.accept(i, items)
            else:
                batch.reject(i, items or Unavailable("decoding this body took longer than this request's share of time"))

    def _decode_together(self, batch: Batch, slots: list[int], budget: Budget) -> dict[int, Any]:
        """Decode the requests of these slots side by side: the items of each, its SlotError, or None where time ran out."""
        requests = [batch.requests[i] for i in slots]
        items = self.decoders.run(self.hooks.decode, requests, budget.decode_share_s, budget.decode_until)
        return dict(zip(slots, items, strict=True))

    def predict(self, batch: Batch, budget: Budget) -> None:
        """Run the rows group by group; `batch.outputs[row]` is the row's output or its SlotError."""
        batch.outputs = [Unavailable(NO_TIME)] * batch.m
        try:
            if self.dead and batch.m:
                raise EngineDead
            for rows in helpings(batch.owners, self.padding.max_rows):
                if budget.over(budget.predict_until):
                    return
                groups, ungrouped = divide(self.handler.groups, batch.items, rows, batch.owners)
                if ungrouped:
                    logger.error("requests %s: groups() failed on their rows", ", ".join(batch.ids(ungrouped)))
                for row in ungrouped:
                    batch.outputs[row] = ModelFault("the handler could not group this row")
                for group in groups:
                    self._run(batch, group, budget)
        except EngineDead:
            logger.exception("requests %s: the engine is dead: this worker ends", ", ".join(batch.ids()))
            dead = Unavailable("the model's engine failed and is being restarted")
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
        ours = {"x-batch-size": str(batch.n)}
        ours |= {"x-decode-ms": f"{batch.decode_ms:.2f}", "x-inference-ms": f"{batch.inference_ms:.2f}"}
        headers = self.hooks.headers()
        fault = headers if isinstance(headers, SlotError) else None
        shared = CheckedHeaders(ours if isinstance(headers, SlotError) else headers | ours)
        answers: dict[int, Answer] = {}
        for i in sorted(range(batch.n), key=lambda i: len(batch.results[i])):  # a short one waits for no long one
            request, own, error = batch.requests[i], shared.with_slot(i), batch.errors[i] or fault
            if error is None and budget.over(budget.encode_until):
                error = Unavailable("there was no time to encode this answer")
            answer = error or self.hooks.answer(request, batch.results[i], own)
            if isinstance(answer, SlotError):
                answer = refusal(answer, own)
                logger.info("request %s: %d %.200a", request.id, answer.status, answer.body)
            answers[i] = answer
        batch.answers = [answers[i] for i in range(batch.n)]

    def _estimate(self, batch: Batch, budget: Budget) -> dict[int, Cost | None]:
        """Estimate what every request costs to decode, and refuse those over their share before anything is decoded."""
        costs: dict[int, Cost | None] = {}
        packed_last = sorted(range(batch.n), key=lambda i: "content-encoding" in batch.requests[i].headers)
        for i in packed_last:  # to estimate a packed body it has to be unpacked, which takes time
            if budget.over(budget.decode_until):
                batch.errors[i] = batch.errors[i] or Unavailable("there was no time to look at this body")
                continue
            cost = self.hooks.cost(batch.requests[i]) if batch.errors[i] is None else None
            if isinstance(cost, SlotError):
                batch.reject(i, cost)
            else:
                costs[i] = cost
        for i, admitted in zip(costs, budget.admit(list(costs.values())), strict=True):
            if not admitted:
                batch.reject(i, TooLarge("decoding this body would take more than this request's share of time or memory"))
        return costs

    def _run(self, batch: Batch, group: list[int], budget: Budget) -> None:
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
        return self.hooks.alive(self.padding.size(1, 1))


def _decode_order(cost: Cost | None, request: Request) -> tuple[float, int]:
    """What requests are sorted by before they are decoded: the estimated time, then the size of the body."""
    return (cost.decode_ms if cost else 0.0, len(request.body))
