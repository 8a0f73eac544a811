"""Why a model does not become ready, in the worker's own last words."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.live import LiveModel
    from slotwise.server import ServerRecord

TRIES = 2  # the servers start a dying worker again and again, each time after a longer pause
RAISED = re.compile(r"MODEL_LOG - ((?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)")
DIED = "Backend worker process died"


def why_not_ready(record: ServerRecord, live: LiveModel, seen: Set[int], wanted: int) -> str | None:
    """One sentence once several workers have died in a row, None while there is hope.

    seen: the pids of all workers since the registration.
    """
    if not record.alive():
        return "the server died"
    dead = seen - {worker.pid for worker in live.workers}
    if live.ready_workers or len(dead) < TRIES * max(1, wanted):
        return None
    return last_words(record) or f"{len(dead)} workers died while loading"


def last_words(record: ServerRecord) -> str:
    """The last exception in the workers' log; "" where there is none."""
    try:
        text = (record.state_dir / "logs" / "model_log.log").read_text("utf-8", "replace")
    except OSError:
        return ""
    raised = RAISED.findall(text[-50_000:])
    return str(raised[-1]).strip() if raised else ""
