"""What a request may cost before it is at the server: how much memory bodies take together, and a client that is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from slotwise.gateway.replies import Refused

Receive = Callable[[], Awaitable[Any]]


class ClientGone(Exception):
    """The client closed its connection while its request waited."""


class MemoryBudget:
    """How many bytes all bodies in memory may take together, and how many they take now."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.now_bytes = max_bytes, 0

    def take(self, count: int) -> None:
        """Take `count` more bytes. Raises Refused (429) where all bodies together would exceed the budget."""
        if self.now_bytes + count > self.max_bytes:
            raise Refused(429, "too many large requests at once, try again later", retry_after_s=1, close=True)
        self.now_bytes += count

    def give_back(self, count: int) -> None:
        """Bodies of `count` bytes are gone."""
        self.now_bytes -= count
