"""Try a request with nothing else in its batch, because a worker died that had it in hand.

Whoever was in that batch goes this way, one request at a time. The innocent get their answers; the one that ends its worker
again is refused, and its body remembered. That is at most two workers for a body that is sent once at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.backends.interface import BackendAnswer, BackendRequest, Refused
from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.backends.remote.sending_permits import SendingPermits, SentCopy
from slotwise.backends.remote.upstream import ConnectionBroken
from slotwise.server.java.own_errors import SIGKILLED, worker_died

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

log = logging.getLogger("slotwise.gateway")

TRIALS = 3
PAUSE_S = 0.5  # between two trials
LATE_S = 2.0  # between two looks at whether it is lost

CopyResult = BackendAnswer | Refused | ConnectionBroken
Attempt = Callable[[bool], Awaitable[BackendAnswer]]


def outcome_or_raise(outcome: CopyResult | None) -> BackendAnswer:
    """What the client gets in the end. Raises Refused (502, 504)."""
    if isinstance(outcome, BackendAnswer):
        return outcome
    raise outcome if isinstance(outcome, Refused) else Refused(502, "the model server cannot be reached")


async def outcome_of(attempt: Awaitable[BackendAnswer], permits: SendingPermits, sent: SentCopy) -> CopyResult:
    """What became of one copy on its way; what it raised is returned."""
    outcome: CopyResult | None = None
    try:
        outcome = await attempt
    except (Refused, ConnectionBroken) as failure:
        outcome = failure
    finally:
        permits.leave(sent, isinstance(outcome, BackendAnswer) and (outcome.good or worker_died(outcome)))
    return outcome


@dataclass(frozen=True)
class RetryAlone:
    """A request that goes alone.

    attempt(fresh), live(max_age_s): as in Race. late_s: an answer that takes longer is late. earlier: its copies that
    were on their way when a worker died. settled(): the good answer of one of these that has come meanwhile.
    """

    request: BackendRequest
    permits: SendingPermits
    metrics: CopyMetrics
    attempt: Attempt
    live: Callable[[float], Awaitable[LiveModel | None]]
    late_s: float
    earlier: Collection[SentCopy]
    settled: Callable[[], BackendAnswer | None]

    async def run(self) -> BackendAnswer:
        """Its answer. Raises Refused: 500 where its worker dies again, 422, 502, 504."""
        self.request.note("its worker ended; it goes alone")
        log.warning("%s %s goes alone: its worker died", self.request.identity, self.request.label, extra=self.request.named)
        self.request.sent = "alone"
        try:
            async with asyncio.timeout(self.request.left_s):
                return await self._trials()
        except TimeoutError:
            raise Refused(504, "the deadline passed before it could be tried alone") from None

    async def _trials(self) -> BackendAnswer:
        outcome: CopyResult | None = None
        for trial in range(1, TRIALS + 1):
            async with self.permits.alone(self.earlier) as sure:
                answer = self.settled()
                if answer is not None:
                    return answer
                self.request.check()  # the same body may have been tried just before
                self.metrics.alone.labels(self.request.label).inc()
                workers = await self._workers(math.inf)
                outcome = await self._one_trial()
                if isinstance(outcome, BackendAnswer) and worker_died(outcome):
                    likely = sure and (outcome.status != SIGKILLED or trial > 1)  # one SIGKILL may have been an operator's
                    # Where it is to have fewer workers now, one of them may have been ended for that.
                    if trial == TRIALS or (likely and await self._workers(0.0) >= workers):
                        self.request.convict()  # before the next one goes
                        raise Refused(500, "the worker ended on this request, and another one when it went alone")
                    continue
            if isinstance(outcome, BackendAnswer) and (outcome.good or outcome.status < 500):
                return outcome
            await asyncio.sleep(PAUSE_S)
        return outcome_or_raise(outcome)

    async def _workers(self, max_age_s: float) -> int:
        """How many the model is to have, as it was looked at so many seconds ago at most."""
        live = await self.live(max_age_s)
        return live.min_workers if live else 0

    async def _one_trial(self) -> CopyResult:
        """What comes of it. A further copy is sent where no answer comes although a worker is READY: the first was lost.

        While a worker starts, a further copy would wait beside the first, and end another.
        """
        late_s, ready = max(LATE_S, self.late_s), False
        copies = {self._start()}
        try:
            while True:
                done, _ = await asyncio.wait(
                    copies, timeout=late_s if self.request.repeatable else None, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return done.pop().result()
                live = await self.live(LATE_S / 2)
                was_ready, ready = ready, live is None or live.ready_workers > 0
                if was_ready and ready:
                    copies.add(self._start())
                    late_s *= 2
        finally:
            for copy in copies:
                copy.cancel()

    def _start(self) -> asyncio.Task[CopyResult]:
        return asyncio.create_task(outcome_of(self.attempt(True), self.permits, self.permits.enter()))
