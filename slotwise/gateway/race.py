"""Send copies of one request until the first good answer.

There is one copy, unless something goes wrong. A copy that breaks, or that the server and not a slot answers with 5xx, is
followed by another one, once: the second try. While an answer is late, further copies are sent on connections of their
own: hedges. The first good answer wins, and the other copies are dropped. All share the request's deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slotwise.gateway.hedging import COPIES
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
    """The copies of one request.

    attempt(fresh): send one copy, on a new connection where `fresh`. Raises Broken, or Refused (502, 504).
    """

    def __init__(self, ask: InferenceRequest, attempt: Callable[[bool], Awaitable[ServerAnswer]]) -> None:
        self.ask, self.attempt = ask, attempt
        self.gateway, self.label = ask.gateway, ask.gateway.label(ask.model)
        self.hedging = ask.gateway.hedging(ask.model)
        self.pending: set[Copy] = set()
        self.hedges: set[Copy] = set()
        self.tried_twice = False
        self.resting = False  # the server said 503: nothing is sent before the second try
        self.failure: ServerAnswer | Refused = Refused(502, "the model server cannot be reached")

    async def run(self) -> ServerAnswer:
        """The first good answer, else the server's own error. Raises Refused (502, 504)."""
        self.hedging.count_request()
        self._send(fresh=False)
        pause_s = self.hedging.late_s
        try:
            while self.pending:
                hedge = self.hedging.enabled and len(self.hedges) < COPIES - 1
                done, self.pending = await asyncio.wait(
                    self.pending, timeout=pause_s if hedge else None, return_when=asyncio.FIRST_COMPLETED
                )
                for copy in done:
                    outcome = copy.result()
                    if isinstance(outcome, ServerAnswer) and (outcome.from_slot or outcome.status < 400):
                        if copy in self.hedges:
                            self.gateway.metrics.hedge_wins.labels(self.label).inc()
                        return outcome
                    self._failed(outcome)
                if not done and self._hedge():
                    pause_s *= 2
        finally:
            for copy in self.pending:
                copy.cancel()
        if isinstance(self.failure, Refused):
            raise self.failure
        return self.failure

    def _send(self, fresh: bool, after_s: float = 0.0) -> Copy:
        copy = asyncio.create_task(self._copy(fresh, after_s))
        self.pending.add(copy)
        return copy

    async def _copy(self, fresh: bool, after_s: float) -> CopyResult:
        """What became of one copy, sent after a pause of `after_s`."""
        if after_s:
            self.resting = True
            await asyncio.sleep(after_s)
            self.resting = False
        started = time.monotonic()
        try:
            answer = await self.attempt(fresh)
        except (Refused, ConnectionBroken) as failure:
            return failure
        if answer.status < 400 or answer.from_slot:
            self.hedging.answered(time.monotonic() - started)
        return answer

    def _failed(self, outcome: CopyResult) -> None:
        """Remember what the client gets when nothing better comes; the first failure of the server starts the second try."""
        if isinstance(outcome, ServerAnswer) or (isinstance(outcome, Refused) and not isinstance(self.failure, ServerAnswer)):
            self.failure = outcome
        if self.tried_twice or isinstance(outcome, Refused) or (isinstance(outcome, ServerAnswer) and outcome.status < 500):
            return
        busy = isinstance(outcome, ServerAnswer) and outcome.status == BUSY
        if busy and self.ask.left_s <= BUSY_PAUSE_S:
            return
        self.tried_twice = True
        self.gateway.metrics.retries.labels(self.label).inc()
        reason = outcome.status if isinstance(outcome, ServerAnswer) else outcome
        log.warning("%s %s retried: %s", self.ask.identity, self.ask.model, reason)
        self._send(fresh=True, after_s=BUSY_PAUSE_S if busy else 0.0)

    def _hedge(self) -> bool:
        """Send a further copy, unless the model's queue is full or the budget is spent."""
        if self.resting or self.gateway.limit(self.ask.model).full or not self.hedging.take():
            return False
        self.hedges.add(self._send(fresh=True))
        self.gateway.metrics.hedges.labels(self.label).inc()
        log.info("%s %s hedged: no answer yet", self.ask.identity, self.ask.model)
        return True
