"""A server in the foreground, until a signal or its own end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slotwise import interrupts
from slotwise.errors import SlotwiseError
from slotwise.server.record import running

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

LOOK_S = 0.3


def until_it_ends(record: ServerRecord) -> None:
    """Return at the first signal, which has to be held by then. Raises SlotwiseError where the server ends by itself."""
    while record.alive() and not interrupts.wanted():
        time.sleep(LOOK_S)
    if not interrupts.wanted() and running(record.name) is None and (record.state_dir / "server.json").exists():
        raise SlotwiseError(f"{record.kind} ended by itself", f"its logs are in {record.state_dir / 'logs'}")
    interrupts.settle()
