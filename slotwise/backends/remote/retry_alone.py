"""Try a request with nothing else in its batch, because a worker died that had it in hand.

Whoever was in that batch goes this way, one request at a time. The innocent get their answers; the one that ends its worker
again is refused, and its body remembered. That is at most two workers for a body that is sent once at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slotwise.backends.interface import BackendAnswer, Refused
from slotwise.backends.remote.sending_permits import SendingPermits, SentCopy
from slotwise.backends.remote.upstream import ConnectionBroken
from slotwise.server.java.own_errors import SIGKILLED, worker_died

if TYPE_CHECKING:
    from slotwise.backends.remote.race import Race

log = logging.getLogger("slotwise.gateway")

TRIALS = 3
PAUSE_S = 0.5  # between two trials
LATE_S = 2.0  # between two looks at whether it is lost

CopyResult = BackendAnswer | Refused | ConnectionBroken
Attempt = Callable[[bool], Awaitable[BackendAnswer]]


def given(outcome: CopyResult | None) -> BackendAnswer:
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


async def tried_alone(race: Race) -> BackendAnswer:
    """The answer to a request that goes alone. Raises Refused: 500 where its worker dies again, 422, 502, 504."""
    request = race.request
    log.warning("%s %s goes alone: its worker died", request.identity, request.model)
    request.sent = "alone"
    try:
        async with asyncio.timeout(request.left_s):
            return await _trials(race)
    except TimeoutError:
        raise Refused(504, "the deadline passed before it could be tried alone") from None


async def _trials(race: Race) -> BackendAnswer:
    request = race.request
    outcome: CopyResult | None = None
    for trial in range(1, TRIALS + 1):
        async with race.permits.alone(race.sent_copies) as sure:
            answer = race.settled()  # of an earlier copy that was still on its way
            if answer is not None:
                return answer
            request.check()  # the same body may have been tried just before
            race.metrics.alone.labels(race.request.label).inc()
            outcome = await _one_trial(race)
            if isinstance(outcome, BackendAnswer) and worker_died(outcome):
                # One SIGKILL may have been an operator's.
                if trial == TRIALS or (sure and (outcome.status != SIGKILLED or trial > 1)):
                    request.convict()  # before the next one goes
                    raise Refused(500, "the worker ended on this request, and another one when it went alone")
                continue
        if isinstance(outcome, BackendAnswer) and (outcome.good or outcome.status < 500):
            return outcome
        await asyncio.sleep(PAUSE_S)
    return given(outcome)


async def _one_trial(race: Race) -> CopyResult:
    """What comes of it. A further copy is sent where no answer comes although a worker is READY: the first was lost.

    While a worker starts, a further copy would wait beside the first, and end another.
    """
    late_s, ready = max(LATE_S, race.hedging.late_s), False
    copies: set[asyncio.Task[CopyResult]] = {_start(race)}
    try:
        while True:
            done, _ = await asyncio.wait(
                copies, timeout=late_s if race.request.repeatable else None, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return done.pop().result()
            was_ready, ready = ready, await race.has_worker(LATE_S / 2)
            if was_ready and ready:
                copies.add(_start(race))
                late_s *= 2
    finally:
        for copy in copies:
            copy.cancel()


def _start(race: Race) -> asyncio.Task[CopyResult]:
    return asyncio.create_task(outcome_of(race.attempt(True), race.permits, race.permits.enter()))
