"""Lend the places in which gRPC's messages are read: few, because gRPC holds all of a message in memory while it comes.

Nobody sees how much of a message has come, so an idle call looks like a slow one. But no client gets more than a part of the
places, and none of its connections more than a part of these: there is always one for somebody else. The client that has the
fewest is next. A place that was lent for too long is taken back where somebody waits for it, of the client that has the most.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slotwise.backends.interface import Refused
from slotwise.frontend.admission.limits import SHARE


@dataclass(eq=False)
class Reading:
    """A call that waits for a place (`granted`), or has one since then, of the loop's time. limit: ends it.

    patience_s: for how long it keeps the place, where others wait.
    """

    client: str
    connection: str
    granted: asyncio.Future[None]
    limit: asyncio.Timeout
    patience_s: float
    since: float = 0.0
    taken_back: bool = False

    @property
    def until(self) -> float:
        """When its place may be taken back, of the loop's time."""
        return self.since + self.patience_s

    @property
    def key(self) -> tuple[str, str]:
        """Its connection among everybody's."""
        return self.client, self.connection


class ReadingPlaces:
    """So many places, each lent for `patience_s` where somebody waits for it, else for as long as it takes."""

    def __init__(self, count: int, patience_s: float) -> None:
        self.count, self.patience_s = count, patience_s
        self.most_of_client = max(1, int(count * SHARE))
        self.most_of_connection = max(1, int(self.most_of_client * SHARE))
        self._lent: dict[Reading, None] = {}  # the oldest first
        self._of_client: Counter[str] = Counter()
        self._of_connection: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, dict[str, deque[Reading]]] = {}  # by client and connection; none is empty
        self._looking: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, client: str, connection: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """A place for one message of that client on that connection. Raises Refused (503) where it is taken back.

        patience_s: for how long it is kept, where others wait; None: as usual.
        """
        granted, limit = asyncio.get_running_loop().create_future(), asyncio.timeout(None)
        reading = Reading(client, connection, granted, limit, self.patience_s if patience_s is None else patience_s)
        self._waiting.setdefault(client, {}).setdefault(connection, deque()).append(reading)
        try:
            self._lend()
            await reading.granted
            async with reading.limit:
                yield
        except TimeoutError:
            if not reading.taken_back:
                raise
            raise Refused(503, "the message has not come in time, and others wait", retry_after_s=1) from None
        finally:
            self._leave(reading)
            self._lend()

    def _lend(self) -> None:
        """Lend what is free; where somebody waits then, look again when the first of them was lent for long enough."""
        while len(self._lent) < self.count and (reading := self._next()):
            self._stop_waiting(reading)
            reading.since = asyncio.get_running_loop().time()
            self._lent[reading] = None
            self._of_client[reading.client] += 1
            self._of_connection[reading.key] += 1
            if not reading.granted.done():  # else it was cancelled just now, and leaves
                reading.granted.set_result(None)
        if self._waiting and self._lent and self._looking is None:
            first = min(one.until for one in self._lent)
            self._looking = asyncio.get_running_loop().call_at(first, self._take_back)

    def _next(self) -> Reading | None:
        """Whose turn it is: the client with the fewest places, there the connection with the fewest."""
        for client in sorted(self._waiting, key=self._of_client.__getitem__):
            if self._of_client[client] >= self.most_of_client:
                break
            reading = min(self._waiting[client], key=lambda one: self._of_connection[client, one])
            if self._of_connection[client, reading] < self.most_of_connection:
                return self._waiting[client][reading][0]
        return None

    def _leave(self, reading: Reading) -> None:
        if reading not in self._lent:
            self._stop_waiting(reading)
            return
        del self._lent[reading]
        self._of_client -= Counter([reading.client])  # what comes to 0 is forgotten
        self._of_connection -= Counter([reading.key])

    def _stop_waiting(self, reading: Reading) -> None:
        of_client = self._waiting[reading.client]
        of_client[reading.connection].remove(reading)
        if not of_client[reading.connection]:
            del of_client[reading.connection]
        if not of_client:
            del self._waiting[reading.client]

    def _take_back(self) -> None:
        """End the reading of a late message that is in somebody's way."""
        self._looking = None
        now = asyncio.get_running_loop().time()
        late = [one for one in self._lent if one.until <= now and self._in_the_way(one)]
        if late and not any(one.taken_back for one in self._lent):
            most = max(late, key=lambda one: (self._of_client[one.client], self._of_connection[one.key], -one.since))
            most.taken_back = True
            most.limit.reschedule(now)
        elif self._waiting:
            self._looking = asyncio.get_running_loop().call_later(1.0, self._take_back)

    def _in_the_way(self, reading: Reading) -> bool:
        """Whether somebody who waits would get its place."""
        of_client = self._waiting.get(reading.client, {})
        if reading.connection in of_client and self._of_connection[reading.key] >= self.most_of_connection:
            return True
        if of_client and self._of_client[reading.client] >= self.most_of_client:
            return True
        return bool(self._waiting) and len(self._lent) >= self.count
