"""n requests in, n answers out, whatever some of the requests or the handler's author do.

    n requests --decode--> m items --groups, collate, pad--> [b, ...] --predict--> b outputs
        --encode--> results --respond--> n answers

A pipeline knows no server. A host turns what its server gives into requests, and answers into what its server wants.
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
from slotwise.worker.isolation import EngineDead, Isolation
from slotwise.worker.padding import Padding
from slotwise.worker.request import Request
from slotwise.worker.settings import Settings
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, SlotError, TooLarge, Unavailable
from slotwise.worker.turns import divide, helpings, in_turn

if TYPE_CHECKING:
    from slotwise.worker.handler import BatchHandler

logger = logging.getLogger(__name__)


class Pipeline:
    """One handler, its engine loaded. `dead`: the engine failed for good, so the host should end this worker."""

    def __init__(self, handler: BatchHandler) -> None:
        self.handler, self.settings = handler, handler.settings
        self.hooks = Hooks(handler, self.settings.max_response_bytes)
        self.padding = Padding(self.settings.padding, handler.max_rows or self.settings.batch_size)
        self.isolation = Isolation(self.hooks.attempt, self.padding, self._alive, self.hooks.release)
        self.decoders = Decoders(self.settings.decode_threads)
        self.dead = False

    @classmethod
    def start(cls, handler: BatchHandler, model_dir: Path, settings: Settings) -> Pipeline:
        """Load the engine and run it at every size that will be served."""
        handler.settings = settings
        handler.engine = handler.load(model_dir, settings)
        pipeline = cls(handler)
        if (item := handler.example()) is not None:
            pipeline.isolation.prepare(item, getattr(handler.engine, "warm_up_runs", 1))
        return pipeline

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Exactly one answer a request, in order."""
        return self.run(requests).answers

    def run(self, requests: Sequence[Request]) -> Batch:
        """As `answer`, with what the batch cost."""
        started, batch = time.perf_counter(), Batch(requests)
        budget = Budget(batch.n, self.settings.response_timeout_s, self.settings.decode_budget_ms, self.decoders.threads)
        try:
            self.decode(batch, budget)
            decoded = time.perf_counter()
            self.predict(batch, budget)
            batch.decode_ms, batch.inference_ms = (decoded - started) * 1000, (time.perf_counter() - decoded) * 1000
            self.encode(batch, budget)
            self.respond(batch, budget)
        except Exception:
            logger.exception("requests %s: the worker itself failed on them", ", ".join(batch.ids()))
            fault = ModelFault("the handler failed")
            batch.answers = [refusal(error or fault, CheckedHeaders()) for error in batch.errors]
        if self.decoders.stuck() > MAX_STUCK:  # what was decoded has been answered
            logger.error("requests %s: too many decoders never end: this worker ends", ", ".join(batch.ids()))
            self.dead = True
        batch.total_ms = (time.perf_counter() - started) * 1000
        return batch

    def decode(self, batch: Batch, budget: Budget) -> None:
        """Decode every request for itself; what cannot be decoded becomes that slot's error."""
        costs = self._estimate(batch, budget) if self.hooks.estimates else {}
        slots = [i for i, error in enumerate(batch.errors) if error is None]
        slots.sort(key=lambda i: _expected(costs.get(i), batch.requests[i]))  # who is quick waits for nobody
        heavy = [i for i in slots if budget.heavy(costs.get(i))]
        decoded: dict[int, Any] = {}
        light = [i for i in slots if i not in heavy] if heavy else slots
        for side_by_side in (light, *([i] for i in heavy)):
            if side_by_side is not light and budget.over(budget.decode_until):
                break
            requests = [batch.requests[i] for i in side_by_side]
            items = self.decoders.run(self.hooks.decode, requests, budget.decode_share_s, budget.decode_until)
            decoded |= zip(side_by_side, items, strict=True)
        for i in sorted(slots):
            found = decoded.get(i)
            if isinstance(found, list):
                batch.accept(i, found)
            else:
                batch.reject(i, found or Unavailable("decoding this body took longer than this request's share of time"))

    def predict(self, batch: Batch, budget: Budget) -> None:
        """Run the rows group by group; `batch.outputs[row]` is the row's output or its SlotError."""
        batch.outputs = [Unavailable("the batch could not be decided in time")] * batch.m
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
        """Encode every row for itself, in turn, and hand the results back to their owners."""
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
        """Serialise every slot for itself."""
        ours = {"x-batch-size": str(batch.n)}
        ours |= {"x-decode-ms": f"{batch.decode_ms:.2f}", "x-inference-ms": f"{batch.inference_ms:.2f}"}
        headers = self.hooks.headers()
        fault = headers if isinstance(headers, SlotError) else None
        shared = CheckedHeaders(ours if isinstance(headers, SlotError) else headers | ours)
        answers: dict[int, Answer] = {}
        for i in sorted(range(batch.n), key=lambda i: len(batch.results[i])):  # who has little to say waits for nobody
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
        """What every request will cost to decode. What is over its share is refused: nothing of it is decoded."""
        costs: dict[int, Cost | None] = {}
        for i in sorted(range(batch.n), key=lambda i: "content-encoding" in batch.requests[i].headers):  # unpacking takes time
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
        """Run one group's rows, but those whose deadline has passed."""
        now, due = time.time(), []
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


def _expected(cost: Cost | None, request: Request) -> tuple[float, int]:
    """The order in which requests are decoded: what is quick first; without an estimate what is small."""
    return (cost.decode_ms if cost else 0.0, len(request.body))
