"""Send copies of one request until the first good answer comes. A slot's own error counts as one: the handler has answered.

At first there is one copy. Two things make the race send another one:

the second try   a copy fails: its connection breaks, or the server itself answers 5xx. Once a request, in place of that copy.
a hedge          no answer comes in time. Beside the copies under way, on a connection of its own, within a budget (hedging.py).

The first good answer wins, and the other copies are dropped. All copies share the request's deadline.

Where a worker dies, the servers answer so to every request that it had in hand. One of them may have ended it, so no further
copy of any of them is sent: each goes alone (retry_alone.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slotwise.backends.interface import BackendAnswer, BackendRequest, Refused
from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.backends.remote.hedging import COPIES_MAX, Hedging
from slotwise.backends.remote.retry_alone import Attempt, CopyResult, RetryAlone, outcome_of, outcome_or_raise
from slotwise.backends.remote.sending_permits import SendingPermits, SentCopy
from slotwise.backends.remote.upstream import ConnectionBroken
from slotwise.backends.remote.worker_end import WorkerEnds
from slotwise.server.java.own_errors import worker_died

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

log = logging.getLogger("slotwise.gateway")

BUSY = 503  # the server's own: asking again at once would only add to its load
BUSY_PAUSE_S = 0.5

Copy = asyncio.Task[CopyResult]


@dataclass(frozen=True)
class ModelCopies:
    """What is known of the copies of one model's requests."""

    hedging: Hedging = field(default_factory=Hedging)
    permits: SendingPermits = field(default_factory=SendingPermits)
    worker_ends: WorkerEnds = field(default_factory=WorkerEnds)


class Race:
    """The copies of one request, and which of them are still under way (`pending`).

    attempt(fresh): send one copy, on a new connection where `fresh`. Raises ConnectionBroken, or Refused (502, 504).
    live(max_age_s): the model, where the server has it, as it was looked at so many seconds ago at most.
    """

    def __init__(
        self,
        request: BackendRequest,
        copies: ModelCopies,
        metrics: CopyMetrics,
        attempt: Attempt,
        live: Callable[[float], Awaitable[LiveModel | None]],
    ) -> None:
        self.request, self.metrics, self.attempt, self.live = request, metrics, attempt, live
        self.hedging, self.permits, self.worker_ends = copies.hedging, copies.permits, copies.worker_ends
        self.pending: set[Copy] = set()
        self.hedges: set[Copy] = set()
        self.sent_copies: list[SentCopy] = []  # of every copy, once it is on its way
        self.tried_again = False
        self.pausing = False  # the server said 503: nothing is sent before the second try
        self.killed = False  # a copy was answered with its worker's death
        self.failure: BackendAnswer | Refused | None = None

    async def run(self) -> BackendAnswer:
        """The first good answer, else the server's own error. Raises Refused (422, 500, 502, 504)."""
        self.hedging.count_request()
        self._send(fresh=False)
        try:
            answer = await self._first_good()
            if answer is None and self.killed:
                answer = await self._retried_alone()
        finally:
            for copy in self.pending:
                copy.cancel()
        return answer if answer is not None else outcome_or_raise(self.failure)

    async def _first_good(self) -> BackendAnswer | None:
        """The first good answer; None when every copy has failed, or a worker died of one."""
        wait_s = self.hedging.late_s
        while self.pending and not self.killed:
            may_hedge = self.request.repeatable and len(self.hedges) < COPIES_MAX - 1
            done, self.pending = await asyncio.wait(
                self.pending, timeout=wait_s if may_hedge else None, return_when=asyncio.FIRST_COMPLETED
            )
            answer = self._good(done)
            if answer is not None:
                return answer
            if not done and self._hedge():
                wait_s *= 2
        return None

    async def _retried_alone(self) -> BackendAnswer:
        """The answer to it with nothing else in its batch. Raises Refused (422, 500, 502, 504)."""
        retry = RetryAlone(
            self.request,
            self.permits,
            self.metrics,
            self.attempt,
            self.live,
            self.hedging.late_s,
            self.sent_copies,
            self._settled,
        )
        return await retry.run()

    def _settled(self) -> BackendAnswer | None:
        """The good answer among the copies that were on their way when a worker died."""
        done = {copy for copy in self.pending if copy.done()}
        self.pending -= done
        return self._good(done)

    def _good(self, done: set[Copy]) -> BackendAnswer | None:
        """The good answer among these copies; what failed is remembered."""
        for copy in done:
            result = copy.result()
            if isinstance(result, BackendAnswer) and result.good:
                if copy in self.hedges:
                    self.metrics.hedge_won(self.request.label, self.request.left_s)
                return result
            self._copy_failed(result)
        return None

    def _send(self, fresh: bool, after_s: float = 0.0, may_overtake: bool = False) -> Copy:
        copy = asyncio.create_task(self._run_copy(fresh, after_s, may_overtake))
        self.pending.add(copy)
        return copy

    async def _run_copy(self, fresh: bool, after_s: float, may_overtake: bool) -> CopyResult:
        """What became of one copy, sent after a pause of `after_s`."""
        if after_s:
            self.pausing = True
            await asyncio.sleep(after_s)
            self.pausing = False
        try:
            sent = await self._enter(may_overtake)
        except Refused as refused:
            return refused
        result = await outcome_of(self.attempt(fresh), self.permits, sent)
        if isinstance(result, BackendAnswer) and result.good:
            self.hedging.record_answer(time.monotonic() - sent.sent_at)
        return result

    async def _enter(self, may_overtake: bool) -> SentCopy:
        """Wait until no request goes alone. Raises Refused (422, 504): what went alone may have had the same body."""
        if not self.permits.closed(may_overtake):
            sent = self.permits.enter()
        else:
            try:
                async with asyncio.timeout(self.request.left_s):
                    await self.permits.opened(may_overtake)
            except TimeoutError:
                raise Refused(504, "the deadline passed while other requests were tried alone") from None
            self.request.check()
            sent = self.permits.enter()
        self.sent_copies.append(sent)
        return sent

    def _copy_failed(self, result: CopyResult) -> None:
        """Remember what the client gets when nothing better comes; the first failure of the server starts the second try."""
        if isinstance(result, BackendAnswer) or (isinstance(result, Refused) and not isinstance(self.failure, BackendAnswer)):
            self.failure = result
        self.killed = self.killed or (isinstance(result, BackendAnswer) and worker_died(result))
        if self.tried_again or self.killed or isinstance(result, Refused):
            return
        if isinstance(result, ConnectionBroken):
            self._try_again(result, after_s=0.0)
        elif result.status == BUSY:
            if self.request.left_s > BUSY_PAUSE_S:
                self._try_again(result.status, after_s=BUSY_PAUSE_S)
        elif result.status >= 500:
            self._try_again(result.status, after_s=0.0)

    def _try_again(self, reason: ConnectionBroken | int, after_s: float) -> None:
        """Send the second try after a pause; `reason` is for the log."""
        self.tried_again = True
        self.metrics.retries.labels(self.request.label).inc()
        self.request.note(f"sent again: {reason if isinstance(reason, int) else 'its connection broke'}")
        log.warning("%s %s retried: %s", self.request.identity, self.request.label, reason, extra=self.request.named)
        self._send(fresh=True, after_s=after_s)

    def _hedge(self) -> bool:
        """Send a further copy of what seems to be lost, within the budget: others have overtaken it, or nothing moves.

        Not while a worker ends, which may have it in hand.
        """
        if self.pausing or not self.sent_copies:
            return False
        lost = self.permits.overtaken(self.sent_copies[0]) or self.permits.standing_still(
            self.sent_copies[0], self.hedging.late_s
        )
        if not lost or self.worker_ends.just_now() or not self.hedging.take_from_budget():
            return False
        self.hedges.add(self._send(fresh=True, may_overtake=True))
        self.request.sent = "hedged"
        self.metrics.hedges.labels(self.request.label).inc()
        self.request.note("hedged: no answer yet")
        log.info("%s %s hedged: no answer yet", self.request.identity, self.request.label, extra=self.request.named)
        return True
