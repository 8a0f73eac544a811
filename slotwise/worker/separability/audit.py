"""Answer a share of all requests a second time, alone, after their batch was answered, and compare the two answers.

What raises nothing shows nowhere else: rows handed to the wrong client, padding that leaks into answers, state that lives from
one batch to the next. A mismatch is counted, and logged with both answers' digests; no client ever waits for the second answer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slotwise.worker.separability.agree import agree

logger = logging.getLogger(__name__)

ADDRESS = re.compile(rb" at 0x[0-9a-fA-F]{6,16}\b")  # of an object, in Pillow's errors for example: it says nothing
MISMATCHES, AUDITED = "slotwise_audit_mismatch_total", "slotwise_audit_total"


@dataclass(frozen=True)
class AuditedAnswer:
    """What of an answer is compared: its status, content type and body."""

    status: int
    content_type: str | None
    body: bytes

    def __str__(self) -> str:
        """The answer as the log has it: nothing of what it says."""
        return f"{self.status} sha256 {hashlib.sha256(self.body).hexdigest()[:16]}"

    def same(self, other: AuditedAnswer) -> bool:
        """Whether both say the same: numbers in JSON within the tolerance of an engine, everything else exactly."""
        if (self.status, self.content_type) != (other.status, other.content_type):
            return False
        return self.body == other.body or agree(parsed(self.body), parsed(other.body))


class Audit:
    """Keeps a share of the requests until their batch has been answered, and then asks again.

    rate: the share, 0 to 1. again(request): its answer alone. count(name, value): export a number.
    """

    def __init__(
        self,
        rate: float,
        again: Callable[[Any], AuditedAnswer],
        count: Callable[[str, int], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.rate, self.again, self.count, self.chance = rate, again, count, chance
        self.waiting: list[tuple[str, Any, AuditedAnswer]] = []

    def keep(self, answered: Iterable[tuple[str, Callable[[], tuple[Any, AuditedAnswer]]]]) -> None:
        """Draw from what was answered. Each entry: a request's id, and what gives the request itself and its answer."""
        for identity, both in answered:
            if self.chance() >= self.rate:
                continue
            try:
                self.waiting.append((identity, *both()))
            except Exception:  # the answer is on its way
                logger.exception("request %s cannot be audited", identity)

    def run(self) -> None:
        """Between two batches: ask again for what was drawn. Nothing is raised: an audit costs nobody an answer."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        mismatches = 0
        for identity, request, first in waiting:
            try:
                second = self.again(request)
                if not first.same(second):
                    mismatches += 1
                    logger.warning("audit: request %s got %s in its batch, and %s alone", identity, first, second)
            except Exception:
                logger.exception("request %s could not be audited", identity)
        if mismatches:
            self.count(MISMATCHES, mismatches)
        self.count(AUDITED, len(waiting))  # last: who sees these counted sees their mismatches, too


def parsed(body: bytes) -> Any:
    if b" at 0x" in body:
        body = ADDRESS.sub(b" at 0x", body)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
