"""Answer batches with a guarded archive where there is neither TorchServe nor MMS."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from slotwise.worker.answer import Answer, CheckedHeaders, GivenAnswer, refusal
from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.once import Once, OnPiece
from slotwise.worker.guard.stand_in import StandInContext, StandInSlot, new_id
from slotwise.worker.hosts import forms
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.hosts.java import unreadable
from slotwise.worker.inputs.uploads import beside_a_body
from slotwise.worker.request import Request
from slotwise.worker.separability.audit import Audit
from slotwise.worker.slot_errors import SlotError
from slotwise.worker.streaming.guarded_streams import GuardedStreams, PiecesGuard

DECODES = "TS_DECODE_INPUT_REQUEST"  # a variable that TorchServe's worker looks at for each request: many handlers set it


@dataclass
class GuardedBatch:
    """One answered batch. Nobody knows what of its time theirs spent on decoding."""

    answers: list[Answer]
    total_ms: float
    decode_ms: float = 0.0
    inference_ms: float = 0.0


class LocalGuard:
    """A guard that has been started with a stand-in context. pieces: theirs sends pieces of its answers."""

    def __init__(self, guard: Guard, raw: StandInContext, audit: Audit | None, pieces: bool = False) -> None:
        self.guard, self.raw, self.audit, self.pieces = guard, raw, audit, pieces
        self.metrics = raw.metrics

    @property
    def started(self) -> dict[str, Any]:
        """What it runs on is known to theirs only."""
        streams = {"streams": {"slots": 1, "whole": True}} if self.pieces else {}
        return {"engine": None, "profile": None, **streams}

    @property
    def streaming(self) -> Callable[[Callable[[Frame], Request]], GuardedStreams] | None:
        """What makes of this worker one that streams; None where theirs answers whole."""
        return partial(GuardedStreams, cast("PiecesGuard", self)) if self.pieces else None

    def streamed(self, request: Request, on_piece: OnPiece) -> Answer:
        """The answer to one request: its last piece, where `on_piece` has sent those before it."""
        assert isinstance(self.guard, Once)
        self.guard.on_piece = on_piece
        try:
            return self.run([request]).answers[0]
        finally:
            self.guard.on_piece = None

    @property
    def dead(self) -> bool:
        """Whether the device failed for good."""
        return self.guard.dead

    def run(self, requests: Sequence[Request]) -> GuardedBatch:
        """Answer one batch of requests whose bodies nobody has looked at: exactly one answer each, in order."""
        started = time.perf_counter()
        answers: list[Answer | None] = [None] * len(requests)
        rows: dict[int, Any] = {}
        for i, request in enumerate(requests):
            try:
                rows[i] = _row(request)
            except SlotError as error:
                answers[i] = refusal(error, CheckedHeaders())
        self.raw.request_processor = [StandInSlot(requests[i].headers) for i in rows]
        self.raw.request_ids = {k: new_id() for k in range(len(rows))}
        names = [requests[i].id for i in rows]
        bodies = self.guard.answer(list(rows.values()), self.raw, names) if rows else []
        for i, slot, body in zip(rows, self.raw.request_processor, bodies, strict=True):
            answers[i] = _answer(slot, body)
        return GuardedBatch([answer for answer in answers if answer is not None], 1000 * (time.perf_counter() - started))

    def between(self) -> None:
        """To be called between two batches."""
        if self.audit is not None:
            self.audit.run()

    def take_metrics(self) -> list[list[Any]]:
        """The numbers of theirs since the last call: name, value, unit, None."""
        values, self.metrics.values = self.metrics.values, []
        return values


def _as_it_came(value: bytes, content_type: str) -> bytes:
    return value


def _row(request: Request) -> dict[str, Any]:
    """The row that TorchServe would make of it: JSON is parsed, text decoded, a form taken apart; else it is a bytearray, as a
    parameter of the address always is.

    Of several fields of one name it has the last. A form's file is what its own content type says. Nothing is parsed or decoded
    where the server's configuration, or theirs in its environment, says so.
    """
    kind = request.headers.get("content-type", "")
    decoded: Callable[[Any, str], Any] = partial(unreadable.decoded, server="torchserve")
    if os.environ.get(DECODES, "true") != "true":
        decoded = _as_it_came
    by_address = {name: value.encode("utf-8", "replace") for name, value in beside_a_body(request.query).items()}
    row = {**by_address, **forms.row(request, decoded)}
    row = {name: value[-1] if isinstance(value, forms.RepeatedParts) else value for name, value in row.items()}
    if request.headers.get("describe") == "True" and not request.body:  # GET /models/MODEL?customized=true has none
        row.pop("body", None)
    if "body" in row:
        row["body"] = decoded(row["body"], kind)
    return {name: bytearray(value) if isinstance(value, bytes) else value for name, value in row.items()}


def _answer(slot: StandInSlot, body: Any) -> Answer:
    told = slot.get_response_headers()
    last = {name.lower(): name for name in told}  # set twice, in two spellings: the later one holds, as on TorchServe
    headers = {name: told[name] for name in last.values()}
    status = slot.get_response_status_code()
    try:
        return GivenAnswer(200 if status is None else status, headers.pop("content-type", ""), bytes(body), headers)
    except SlotError as error:
        return refusal(error, CheckedHeaders())
