"""Send each record of a request to the model as a request of its own, batched with everybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from slotwise.gateway.forward import CLIENT_GONE, Forward
from slotwise.gateway.inference_request import InferenceRequest
from slotwise.gateway.keys import AccessKey
from slotwise.gateway.protocols.records import RecordAnswer, RecordBody
from slotwise.gateway.replies import Refused

Found = Sequence[RecordBody | RecordAnswer]


async def answered(
    forward: Forward, whole: InferenceRequest, found: Found, key: AccessKey | None, gone: asyncio.Event | None = None
) -> list[RecordAnswer]:
    """What became of each record; never more are sent at once than the server is let have.

    gone: set when nobody waits for the answer any more; records that are not at the server by then are not sent. Raises Refused
    (413, 429).
    """
    left = gone or asyncio.Event()
    gateway = whole.gateway
    if key and gateway.keys:
        for _ in found[1:]:  # the first was counted with the request
            gateway.keys.allow(key, whole.model)
    full: list[Refused] = []  # the answers take more memory than there is
    places = asyncio.Semaphore(max(1, whole.traffic.limit.in_flight_max))

    async def one(i: int, record: RecordBody | RecordAnswer) -> RecordAnswer:
        if isinstance(record, RecordAnswer):
            return record
        async with places:
            if left.is_set():
                return RecordAnswer(CLIENT_GONE, b"")
            status, _, body = await forward.record(whole.for_record(i, record.body, record.content_type), left)
        try:
            whole.hold_bytes(whole.memory_bytes + len(body))
        except Refused as refused:
            full.append(refused)
            left.set()
        return RecordAnswer(status, body)

    answers = await asyncio.gather(*(one(i, record) for i, record in enumerate(found)))
    if full:
        raise full[0]
    return answers
