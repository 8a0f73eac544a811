"""A guarded archive's entry point, for both servers."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.environment import digests
from slotwise.worker.environment.settings import PROOF_S
from slotwise.worker.guard import foreign_handler as theirs
from slotwise.worker.guard.bare import Bare
from slotwise.worker.guard.batches import Guard
from slotwise.worker.guard.held_metrics import metrics_of
from slotwise.worker.guard.intermediate import Intermediate
from slotwise.worker.guard.local_guard import LocalGuard
from slotwise.worker.guard.once import Once
from slotwise.worker.guard.stand_in import StandInContext
from slotwise.worker.hosts.java import mms_frames, unreadable
from slotwise.worker.hosts.java.between_batches import before_every_read, end_after_this_answer
from slotwise.worker.hosts.java.context import PACKAGES, ServerContext
from slotwise.worker.hosts.java.server_limits import limits_of, profile_of_slotwise

logger = logging.getLogger(__name__)


class GuardedHandler:
    """`handle(data, context)` of the archive whose guard has these terms (guard.json)."""

    def __init__(self, terms: Path) -> None:
        self.terms: dict[str, Any] = json.loads(terms.read_text("utf-8"))

    def handle(self, data: Sequence[Any] | None, raw: Any) -> list[Any]:
        """Answer one batch: exactly one body a request, in order. With `data=None`: find theirs and start it."""
        if data is None:
            self.load(raw)
            return []
        if self.decodes:
            headers = [processor.get_request_properties() for processor in raw.request_processor]
            data = [unreadable.row(row, own, self.server) for row, own in zip(data, headers, strict=True)]
        answers = self.guard.answer(data, raw)
        if self.guard.dead:
            end_after_this_answer(PACKAGES[self.server])
        return answers

    def without_server(self, model_dir: Path, batch_size: int) -> LocalGuard:
        """Start theirs for a host that has no context to hand over."""
        context = StandInContext(model_dir, batch_size)
        self.load(context)
        return LocalGuard(self.guard, context, self.guard.audit, self.terms.get("once") in ("pieces", "steps"))

    def load(self, raw: Any) -> None:
        """Verify the archive, start theirs, and put the guard around it."""
        context = ServerContext(raw)
        self.server, self.decodes = context.server, unreadable.left_to_us()
        verified = digests.verify(context.model_dir, others=True)
        if context.server == "mms":
            mms_frames.install()
            unreadable.install()
        once: dict[str, Any] = {}
        if why := self.terms.get("once"):
            pieces = Intermediate()
            pieces.install()
            once = {"pieces": pieces, "steps": why == "steps", "sequence": why == "sequence"}
        handle = theirs.start(self.terms["handler"], raw, context.server, self.terms.get("legacy", False))
        digests.take_over(context.model_dir, verified, others=True)
        limits = limits_of(raw, server=context.server)
        guard_class = Once if once else Bare if self.terms.get("bare") else Guard
        self.guard = guard_class(
            handle,
            metrics_of(raw, context.server),
            self.terms.get("bad_input", ()),
            response_timeout_s=limits.response_timeout_s,
            max_response_bytes=limits.max_response_bytes,
            tensors=context.server == "torchserve",
            together=not once and self.terms.get("together", True),
            **once,
        )
        audit_rate = self.terms.get("audit") or profile_of_slotwise().get("audit") or 0.0
        rate = float(audit_rate) if guard_class is Guard else 0.0  # no other may be asked twice
        if rate:
            audit = self.guard.audit_with(rate, raw, context.metric_between)
            before_every_read(PACKAGES[self.server], audit.run)
        unproven = self.guard.together and self.terms.get("proof", {}).get("separable", False) is None
        proof_s = float(profile_of_slotwise().get("proof_s", PROOF_S))
        if guard_class is Guard and unproven and proof_s and context.gpu_id is None:  # a GPU rounds more
            self.guard.look_at_first_answers(proof_s)
        how = "whole batches, bare" if guard_class is Bare else "batches" if self.guard.together else "one request at a time"
        how += f", once ({why})" if once else ""
        logger.info("slotwise guard: around %s; %s; audit %g; %s", self.terms["handler"], limits, rate, how)
