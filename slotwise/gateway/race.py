"""Send copies of one request until the first good answer comes. A slot's own error counts as one: the handler has answered.

At first there is one copy. Two things make the race send another one:

the second try   a copy fails: its connection breaks, or the server itself answers 5xx. Once a request, in place of that copy.
a hedge          no answer comes in time. Beside the copies under way, on a connection of its own, within a budget (hedging.py).

The first good answer wins, and the other copies are dropped. All copies share the request's deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slotwise.gateway.hedging import COPIES_MAX
from slotwise.gateway.replies import Refused
from slotwise.gateway.upstream import ConnectionBroken, ServerAnswer

if TYPE_CHECKING:
    from slotwise.gateway.inference_request import InferenceRequest

log = logging.getLogger("slotwise.gateway")

BUSY = 503  # the server's own: asking again at once would only add to its load
BUSY_PAUSE_S = 0.5

CopyResult = ServerAnswer | Refused | ConnectionBroken
Copy = asyncio.Task[CopyResult]


class Race:
    """The copies of one request, and which of them are still under way (`pending`).

    attempt(fresh): send one copy, on a new connection where `fresh`. Raises ConnectionBroken, or Refused (502, 504).
    """

    def __init__(self, request: InferenceRequest, attempt: Callable[[bool], Awaitable[ServerAnswer]]) -> None:
        self.request, self.attempt = request, attempt
        self.gateway, self.label = request.gateway, request.gateway.label(request.model)
        self.hedging = request.gateway.hedging(request.model)
        self.pending: set[Copy] = set()
        self.hedges: set[Copy] = set()
        self.tried_twice = False
        self.pausing = False  # the server said 503: until the second try is sent, no hedge is
        self.failure: ServerAnswer | Refused = Refused(502, "the model server cannot be reached")

    async def run(self) -> ServerAnswer:
        """The first good answer, else the server's own error. Raises Refused (502, 504)."""
        self.hedging.count_request()
        self._send(fresh=False)
        wait_s = self.hedging.late_s
        try:
            while self.pending:
                may_hedge = self.hedging.enabled and len(self.hedges) < COPIES_MAX - 1
                done, self.pending = await asyncio.wait(
                    self.pending, timeout=wait_s if may_hedge else None, return_when=asyncio.FIRST_COMPLETED
                )
                for copy in done:
                    result = copy.result()
                    if isinstance(result, ServerAnswer) and _is_good(result):
                        if copy in self.hedges:
                            self.gateway.metrics.hedge_wins.labels(self.label).inc()
                        return result
                    self._copy_failed(result)
                if not done and self._hedge():
                    wait_s *= 2
        finally:
            for copy in self.pending:
                copy.cancel()
        if isinstance(self.failure, Refused):
            raise self.failure
        return self.failure

    def _send(self, fresh: bool, after_s: float = 0.0) -> Copy:
        copy = asyncio.create_task(self._run_copy(fresh, after_s))
        self.pending.add(copy)
        return copy

    async def _run_copy(self, fresh: bool, after_s: float) -> CopyResult:
        """Send one copy after a pause of `after_s`, and return its answer or failure."""
        if after_s:
            self.pausing = True
            await asyncio.sleep(after_s)
            self.pausing = False
        started = time.monotonic()
        try:
            answer = await self.attempt(fresh)
        except (Refused, ConnectionBroken) as failure:
            return failure
        if _is_good(answer):
            self.hedging.record_answer(time.monotonic() - started)
        return answer

    def _copy_failed(self, result: CopyResult) -> None:
        """Keep the failure as the client's answer until a better one comes, and start the second try where it is worth one."""
        if isinstance(result, ServerAnswer) or (isinstance(result, Refused) and not isinstance(self.failure, ServerAnswer)):
            self.failure = result
        if self.tried_twice or isinstance(result, Refused):
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
        self.tried_twice = True
        self.gateway.metrics.retries.labels(self.label).inc()
        log.warning("%s %s retried: %s", self.request.identity, self.request.model, reason)
        self._send(fresh=True, after_s=after_s)

    def _hedge(self) -> bool:
        """Send a further copy, unless the model's queue is full or the budget is spent."""
        if self.pausing or self.gateway.limit(self.request.model).full or not self.hedging.take_from_budget():
            return False
        self.hedges.add(self._send(fresh=True))
        self.gateway.metrics.hedges.labels(self.label).inc()
        log.info("%s %s hedged: no answer yet", self.request.identity, self.request.model)
        return True


def _is_good(answer: ServerAnswer) -> bool:
    """Whether the client gets this answer: it succeeded, or a slot gave it."""
    return answer.status < 400 or answer.from_slot
