"""Wait for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

PATIENCE_S = 90.0


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
