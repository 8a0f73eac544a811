"""Look at something again and again, also where one look goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("slotwise.host")


async def look_again(look: Callable[[], None], every_s: float, what: str) -> None:
    """Look every so many seconds, until it is cancelled. what: what is looked at, for the log."""
    while True:
        await asyncio.sleep(every_s)
        try:
            look()
        except Exception:
            log.exception("%s could not be looked at", what)
