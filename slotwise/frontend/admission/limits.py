"""What a request may cost before it is at the server: how much memory requests take together, and a client that is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from slotwise.backends.interface import Refused
from slotwise.profiles import memory

Receive = Callable[[], Awaitable[Any]]

OWN_BYTES = 128 * 2**20  # of a gateway that has nothing to do, with gRPC
SHARE = 0.75  # of what all have to share, for one client: of the memory while its bodies come, and of reading places
MOST_DERIVED_BYTES = 256 * 2**20  # what nobody asked to be more: a server may be in the same container


def derived_budget(total_bytes: int | None = None) -> int:
    """The memory for requests where none is given: two thirds of what the container's limit leaves beside the process itself.

    A third is what the allocator keeps, and what is counted only when it has arrived. total_bytes: the limit; None: as it is.
    """
    total = memory.total_bytes() if total_bytes is None else total_bytes
    return max(16 * 2**20, min(MOST_DERIVED_BYTES, (total - OWN_BYTES) * 2 // 3))


class ClientGone(Exception):
    """The client closed its connection while its request waited."""


class MemoryBudget:
    """How many bytes all requests may take together (bodies, what reading them makes, records, answers), and take now.

    Bodies that have not come whole yet take as long as their client likes: one client's take no more than SHARE of it together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.now_bytes = max_bytes, 0
        self._coming: Counter[str] = Counter()  # by sender

    def comes(self, sender: str, before: int, count: int) -> None:
        """`count` more bytes of a body have come, of which `before` had. Raises Refused (429) beyond its sender's share."""
        if self._coming[sender] > before and self._coming[sender] + count > SHARE * self.max_bytes:
            raise Refused(429, "too many large requests of one client at once", retry_after_s=1, close=True)
        self._coming[sender] += count

    def came(self, sender: str, count: int) -> None:
        """A body of which so many bytes have come is whole, or will not be."""
        self._coming[sender] -= count
        if not self._coming[sender]:
            del self._coming[sender]

    def take(self, count: int) -> None:
        """Take `count` more bytes. Raises Refused: 429 where all together would exceed the budget, 413 where these would."""
        if count > self.max_bytes:
            raise Refused(413, "this request takes more memory than there is for all of them", close=True)
        if self.now_bytes + count > self.max_bytes:
            raise Refused(429, "too many large requests at once, try again later", retry_after_s=1, close=True)
        self.now_bytes += count

    def give_back(self, count: int) -> None:
        """`count` bytes are gone."""
        self.now_bytes -= count
