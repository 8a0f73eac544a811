"""The archives that are asked, each in its own worker without a server, and what their good bodies are answered alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from slotwise.archive.local_model import LocalAnswer, LocalModel, LocalRequest
from tests.campaign.tally import Tally

BATCH = 64
PATIENT = {"decode_budget_ms": 600_000, "response_timeout_s": 600}  # what is tried here is right or wrong, never how fast
ENVIRON = {"SLOTWISE_PROFILE": "cpu", "SLOTWISE_OVERRIDES": json.dumps(PATIENT)}
TOLERANCE = 1e-3  # of a probability: kernels change with the batch's size
NOT_FINITE = b"the model's output is not finite"  # of a tensor whose numbers are finite, but enormous: a 500, as promised
INSIDE = (b"Traceback", b"/secret", b"slotwise-local-")  # what no answer may hold


@dataclass
class Model:
    """One model. good: bodies that it answers, each with its headers. alone: their answers, as they come."""

    name: str
    archive: Path
    good: list[LocalRequest] = field(default_factory=list)
    alone: dict[int, Any] = field(default_factory=dict)
    local: LocalModel | None = None

    def ready(self, tally: Tally) -> LocalModel:
        """The worker; a new one where the last one ended."""
        if self.local is None or not self.local.alive:
            if self.local is not None:
                tally.restarts += 1
                self.local.close()
            self.local = LocalModel(self.archive, batch_size=BATCH, environ=ENVIRON)
        return self.local

    def close(self) -> None:
        """End the worker."""
        if self.local is not None:
            self.local.close()

    def answer_alone(self, k: int, tally: Tally) -> Any:
        """What good body k is answered in a batch of its own."""
        if k not in self.alone:
            (answer,) = self.ready(tally).answer([self.good[k]])
            assert answer.status == 200, f"{self.name}: good body {k} is answered {answer.status} {answer.body[:80]!r}"
            self.alone[k] = answer.json()
        return self.alone[k]


def same(first: Any, second: Any) -> bool:
    """Whether two answers say the same: numbers may differ by TOLERANCE, and labels where their numbers do no more."""
    if isinstance(first, dict) and isinstance(second, dict):
        if "probabilities" in first and "probabilities" in second:
            left, right = first["probabilities"], second["probabilities"]
            near = all(same(left[key], right[key]) for key in left.keys() & right.keys())
            named = first["label"] == second["label"] or same(left.get(second["label"], -1), left[first["label"]])
            return near and named
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) or isinstance(second, float):
        return abs(first - second) <= TOLERANCE * max(1.0, abs(first))
    return bool(first == second)


def check(model: Model, slot: int, k: int | None, answer: LocalAnswer, case: int, planned: set[int], tally: Tally) -> None:
    """Count one answer. k: which good body it was, None for a bad one. planned: statuses from 500 up that may be."""
    tally.requests += 1
    about = f"{model.name}, slot {slot}: {answer.status} {answer.body[:120]!r}"
    if any(word in answer.body for word in INSIDE):
        tally.fail(case, "wrong", f"an answer shows what is inside: {about}")
    if answer.headers.get("x-batch-slot", str(slot)) != str(slot):
        tally.fail(case, "wrong", f"the answer of another slot: {about}")
    if k is not None:
        tally.innocents += 1
        if answer.status != 200:
            tally.fail(case, "lost", about)
        elif not same(model.answer_alone(k, tally), answer.json()):
            tally.fail(case, "wrong", f"alone it is {model.alone[k]}: {about}")
    elif answer.status >= 500 and answer.status not in planned and NOT_FINITE not in answer.body:
        tally.fail(case, "unplanned", about)
    elif answer.status >= 400:
        tally.refused += 1
        error = answer.json()["error"]
        if error["code"] != answer.status or not isinstance(error["message"], str):
            tally.fail(case, "wrong", f"no error as promised: {about}")


def mixed(draw: Random, good: int, bad: int) -> list[bool]:
    """In which slots the good ones are."""
    order = [True] * good + [False] * bad
    draw.shuffle(order)
    return order
