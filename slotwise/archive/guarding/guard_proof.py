"""Prove with examples that a guarded handler of somebody else gives no request an answer that depends on its batch-mates.

Each example is answered among copies of itself, and at the same place among the others, in batches of the same sizes. Status,
headers, and every number and text of the body have to be the same. And all of them together are the first batch of another
worker: a handler that keeps what it has answered would say the same for ever.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotwise.archive.local_model import LocalAnswer, LocalModel
from slotwise.errors import SlotwiseError
from slotwise.worker.answer import REQUEST_ID
from slotwise.worker.separability.agree import agree
from slotwise.worker.separability.bits import Deviation, bits, difference
from slotwise.worker.separability.two_batches import prove
from slotwise.worker.separability.verdict import Verdict
from slotwise.worker.slot_errors import SlotError

SIZES = (2, 3, 4, 8)
MOST_EXAMPLES = 8
MOST_S = 300.0  # for all examples together


@dataclass(frozen=True)
class Example:
    """A body that the handler answers, and what it is called."""

    name: str
    body: bytes
    content_type: str = "application/octet-stream"


@dataclass(frozen=True)
class GuardProof:
    """What is known of a guarded handler. separable: True proven, False refuted, None unproven.

    cause: why not True, in plain words. examples: the SHA-256 of each. sizes: the batches that were tried.
    apart: how far an answer in a batch was at most from the same one alone, where its mates changed nothing.
    """

    separable: bool | None = None
    cause: str = "no examples were given"
    examples: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    apart: float | None = None

    @property
    def together(self) -> bool:
        """Whether requests may share a batch."""
        return self.separable is not False

    def to_json(self) -> dict[str, Any]:
        """As guard.json has it."""
        sizes = list(self.sizes)
        return {
            "separable": self.separable,
            "cause": self.cause,
            "examples": [*self.examples],
            "sizes": sizes,
            "apart": self.apart,
        }

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> GuardProof:
        """Of a guard.json, also one of an earlier release."""
        kept = terms.get("proof")
        if not isinstance(kept, dict):
            return cls()
        return cls(
            kept.get("separable"),
            str(kept.get("cause")),
            tuple(kept.get("examples", ())),
            tuple(kept.get("sizes", ())),
            kept.get("apart"),
        )

    def sentence(self) -> str:
        """The verdict in one line."""
        if self.separable:
            sizes = ", ".join(map(str, self.sizes))
            return f"proven with {len(self.examples)} examples in batches of {sizes}: no answer depends on its batch-mates"
        if self.separable is None:
            return f"unproven: whether answers depend on their batch-mates is not known ({self.cause})"
        return f"REFUTED: an answer may depend on its batch-mates ({self.cause}), so the handler gets one request at a time"


def prove_guarded(archive: Path, examples: Sequence[Example]) -> GuardProof:
    """Answer the examples with the archive's guard in a child process. Raises SlotwiseError where it does not start here."""
    if len({example.body for example in examples}) < 2:
        raise SlotwiseError("a proof needs two examples that differ", "give --example FILE for each of several")
    if len(examples) > MOST_EXAMPLES:
        raise SlotwiseError(
            f"a proof takes at most {MOST_EXAMPLES} examples, not {len(examples)}", "give the ones that differ most"
        )
    try:
        with LocalModel(archive, batch_size=max(SIZES)) as model:
            stop_at = time.monotonic() + MOST_S
            verdicts = _verdicts(model, examples, stop_at)
            if all(verdict.separable for verdict in verdicts) and time.monotonic() < stop_at:
                verdicts.append(_first_batch(archive, model, examples))
    except SlotwiseError as error:
        hint = "guard it without --example, or where its requirements are installed"
        why = str(error).removeprefix(f"{archive.name}: ")
        raise SlotwiseError(f"nothing can be proven here: {why}", hint) from error
    digests = tuple(hashlib.sha256(example.body).hexdigest() for example in examples)
    refuted = [verdict for verdict in verdicts if verdict.separable is not True]
    if refuted:
        worst = min(refuted, key=lambda verdict: verdict.separable is None)
        return GuardProof(worst.separable, worst.cause, digests, SIZES)
    apart = max(verdict.between_shapes.absolute for verdict in verdicts)
    return GuardProof(True, "", digests, SIZES, apart if math.isfinite(apart) else None)


def _verdicts(model: LocalModel, examples: Sequence[Example], stop_at: float) -> list[Verdict]:
    """One of each example, up to the first that is refuted."""
    verdicts = []
    for example in examples:
        mates = {one.name: one for one in examples if one.body != example.body}
        attempt = _Attempt(model)
        verdict = prove(attempt, example, mates, SIZES, agree=agree, budget_s=max(0.0, stop_at - time.monotonic()))
        cause = f"{example.name}: {verdict.cause}" + (attempt.far() if verdict.separable is False else "")
        verdicts.append(replace(verdict, cause=cause))
        if verdict.separable is False:
            break
    return verdicts


def _first_batch(archive: Path, model: LocalModel, examples: Sequence[Example]) -> Verdict:
    """Whether a new worker's first answers are those that `model` gives to each example at its place among copies."""
    batch = [examples[i % len(examples)] for i in range(max(SIZES))]
    with LocalModel(archive, batch_size=len(batch)) as another:
        together = _Attempt(another)(batch, len(batch))
    attempt = _Attempt(model)
    for place, example in enumerate(examples):
        alone = attempt([example] * len(batch), len(batch))[place]
        one, other = (each if isinstance(each, SlotError) else each[-1] for each in (alone, together[place]))  # without headers
        if not agree(one, other):
            cause = (
                f"{example.name}: mixes rows: a new worker's first batch has another answer than one that has answered before"
            )
            return Verdict(False, cause, 1)
    return Verdict(True)


class _Attempt:
    """Answers one batch of examples, and remembers how far an example's answers in batches of one size were apart."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.seen: dict[tuple[int, int, str], Any] = {}
        self.headers: dict[tuple[str, ...], list[dict[str, str]]] = {}
        self.unsteady = {REQUEST_ID}  # headers that are others when the same batch is asked again: with the time, say
        self.most = Deviation()

    def __call__(self, examples: list[Example], size: int) -> list[Any]:
        answers = self.model.answer([(one.body, {"content-type": one.content_type}) for one in examples])
        headers = [answer.headers for answer in answers]
        for before, now in zip(self.headers.setdefault(tuple(one.name for one in examples), headers), headers, strict=True):
            self.unsteady |= {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        outputs = [_output(answer, self.unsteady) for answer in answers]
        for place, (example, output) in enumerate(zip(examples, outputs, strict=True)):
            first = self.seen.setdefault((size, place, example.name), output)
            if bits(first) != bits(output):
                self.most = self.most.most(difference(first, output))
        return outputs

    def far(self) -> str:
        """How far, in words."""
        return f", numbers up to {self.most.absolute:.2g} apart" if math.isfinite(self.most.absolute) else ""


def _output(answer: LocalAnswer, unsteady: Collection[str]) -> Any:
    """What is compared of an answer; a SlotError for a refusal."""
    if answer.status >= 400:
        return SlotError(f"HTTP {answer.status}")
    try:
        body = json.loads(answer.body, object_pairs_hook=_pairs)
    except (ValueError, RecursionError):
        body = answer.body
    headers = sorted([name, value] for name, value in answer.headers.items() if name not in unsteady)
    return [answer.status, answer.content_type, headers, body]


def _pairs(pairs: list[tuple[str, Any]]) -> list[list[Any]]:
    """An object whose names may be there twice."""
    return [[*pair] for pair in pairs]
