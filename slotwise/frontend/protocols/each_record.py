"""Send each record of a request to the model as a request of its own, batched with everybody else's.

The request is let in as a whole or refused as a whole: it waits as one request does, and its records get their places in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from slotwise.backends.exchange import AnsweredBy
from slotwise.backends.interface import Refused
from slotwise.frontend.admission.limits import ClientGone
from slotwise.frontend.forward import Forward
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.protocols.records import Found, RecordAnswer, RecordBody
from slotwise.frontend.replies import SEQUENCE

NOT_NOW = (429, 503, 504)  # one record's refusal is the request's own: nobody takes a part of the answers for all
TRIES = 2
ONE_BY_ONE = "the requests of a sequence go one by one, and this has several records"
MIXED = "its records were answered by two archives of the model"


@dataclass
class _RecordsAttempt:
    """One attempt to have all records answered. refusals: of them. by: who answered. repeatable: all may be sent again."""

    refusals: list[Refused] = field(default_factory=list)
    by: set[AnsweredBy] = field(default_factory=set)
    repeatable: bool = True


async def answered(forward: Forward, whole: InferenceRequest, records: Found, gone: asyncio.Event) -> list[RecordAnswer]:
    """What became of each record, all by one archive, which `whole.answered_by` says. Raises Refused or ClientGone.

    400: several records of a sequence, each of which would begin or end it, in any order. 429, 503, 504: not all were let in.
    gone: set when nobody waits for the answer any more. No further record is sent then, nor once one was refused; what is at
    the server keeps its place there until it is answered. Where two archives have answered, which a roll-out tries or a default
    that changes brings about, all are sent once more; 500: they must not be, 503: it was no use.
    """
    if len(records) > 1 and any(name.startswith(SEQUENCE.decode()) for name in whole.headers):
        raise Refused(400, ONE_BY_ONE)
    held = whole.memory_bytes
    for _ in range(TRIES):
        attempt = _RecordsAttempt()
        answers = await _answered_once(forward, whole, records, gone, attempt)
        if len(attempt.by) < 2:
            whole.answered_by = next(iter(attempt.by), whole.answered_by)
            return answers
        if not attempt.repeatable:
            raise Refused(500, f"{MIXED}, and must not be sent twice")
        whole.one_archive = True
        del answers
        whole.hold_bytes(held)
    raise Refused(503, f"{MIXED}, try again later", retry_after_s=1)


async def _answered_once(
    forward: Forward, whole: InferenceRequest, records: Found, gone: asyncio.Event, attempt: _RecordsAttempt
) -> list[RecordAnswer]:
    to_send = {i: record for i, record in enumerate(records) if isinstance(record, RecordBody)}
    sent: dict[int, asyncio.Task[RecordAnswer]] = {}
    limit, refusals = whole.traffic.limit, attempt.refusals
    turn = limit.admit(whole.sender, whole.left_s, whole.weight, whole.priority)
    room = asyncio.Semaphore(whole.traffic.records or max(1, len(to_send)))
    if not whole.one_archive:
        whole.bill.pay(max(1, len(to_send)))
    try:
        try:
            for i, record in to_send.items():
                await room.acquire()
                if gone.is_set():
                    raise ClientGone
                if refusals:
                    raise refusals.pop(0)
                await limit.enter(turn, whole.left_s, gone.wait)
                sent[i] = asyncio.create_task(
                    _answer_to(forward, whole, whole.for_record(i, record.body, record.content_type, limit), gone, attempt)
                )
                sent[i].add_done_callback(lambda _: limit.leave(turn))
                sent[i].add_done_callback(lambda _: room.release())
        except (Refused, ClientGone):  # not kept here: this frame holds the records, and it would hold this frame
            await _all_of(sent)
            raise
        await _all_of(sent)
    finally:
        for task in sent.values():
            task.cancel()
    if refusals:
        raise refusals.pop(0)
    return [record if isinstance(record, RecordAnswer) else sent[i].result() for i, record in enumerate(records)]


async def _all_of(sent: Mapping[int, asyncio.Task[RecordAnswer]]) -> None:
    if sent:
        await asyncio.wait(sent.values())


async def _answer_to(
    forward: Forward, whole: InferenceRequest, request: InferenceRequest, gone: asyncio.Event, attempt: _RecordsAttempt
) -> RecordAnswer:
    """What the model, or the gateway, said of one record.

    It is among the refusals where the archive that a roll-out tries, or the model's own queue, did not let it in, where it was
    too late, or where all the answers take more memory than there is.
    """
    status, headers, body = await forward.record(request, gone)
    attempt.repeatable &= request.repeatable
    if request.refusal is None and request.answered_by.model:
        attempt.by.add(request.answered_by)
    if request.refusal is not None and request.refusal.status in NOT_NOW:
        attempt.refusals.append(request.refusal)
    else:
        try:
            whole.hold_bytes(whole.memory_bytes + len(body))
        except Refused as refused:
            attempt.refusals.append(refused.without_frames())
    return RecordAnswer(status, body, dict(headers).get(b"content-type", b"").decode("latin-1"))
