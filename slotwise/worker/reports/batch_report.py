"""What one batch did, for a host that wants to know: when it decoded, each call of the model and whose rows it had.

Numbers only, and the kinds of errors: nothing of a body, an answer or a message. A guard's handler is not ours: of its batch
there is the whole time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from slotwise.worker.batch import Tally
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.hosts.local import Answered, Answerer
from slotwise.worker.isolation import RanCall
from slotwise.worker.request import Request

MOST_CALLS, MOST_SLOTS = 64, 64  # that are told
LONGEST = 1 << 15


def watched(local: Answerer, requests: Sequence[Request], *, always: bool = True) -> tuple[Answered, list[Frame]]:
    """Answer one batch; returns it, and the frame that reports it. always: or only where a call of the model failed."""
    calls: list[RanCall] = []
    isolation = getattr(getattr(local, "pipeline", None), "isolation", None)
    began, clock = time.time(), time.perf_counter()
    if isolation is not None:
        isolation.calls = calls
    try:
        answered = local.run(requests)
    finally:
        if isolation is not None:
            isolation.calls = None
    tally = getattr(answered, "tally", Tally())
    if not always and not (tally.cuts or tally.guilty):
        return answered, []
    engine = getattr(getattr(local, "handler", None), "engine", None)
    report = {
        "began": began,
        "decode_ms": answered.decode_ms,
        "inference_ms": answered.inference_ms,
        "total_ms": answered.total_ms,
        "rows": tally.rows,
        "padding": tally.padding,
        "cuts": tally.cuts,
        "engine": str(getattr(engine, "name", type(engine).__name__ if engine is not None else "")),
        "precision": str(getattr(engine, "precision", "")),
        "calls": [_told(call, clock) for call in calls[:MOST_CALLS]],
    }
    text = json.dumps(report).encode("ascii")
    if len(text) > LONGEST:
        text = json.dumps({**report, "calls": []}).encode("ascii")
    return answered, [Frame(frames.REPORT, text=text)]


def _told(call: RanCall, clock: float) -> list[object]:
    slots = list(dict.fromkeys(call.owners))[:MOST_SLOTS]
    return [
        round(1000 * (call.began - clock), 3),
        round(1000 * call.took_s, 3),
        len(call.owners),
        call.size,
        slots,
        "" if call.error is None else type(call.error).__name__[:80],
    ]
