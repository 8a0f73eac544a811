"""Wait for what another process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx

PATIENCE_S = 300.0  # a busy machine may stand still for long


def until(there: Callable[[], Any], what: str) -> Any:
    """Wait until `there()` gives something, and return that. A server may not answer until then. what: the error."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if found := there():
                return found
        except (httpx.HTTPError, LookupError):
            pass
        time.sleep(0.05)
    raise AssertionError(what)


async def until_true(true: Callable[[], object]) -> None:
    """As `until`, of what happens on this event loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.02)
