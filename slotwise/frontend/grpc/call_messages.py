"""The messages of a call that is answered with several, from whoever makes them to its client."""

from __future__ import annotations

import asyncio
from collections import deque

from slotwise.backends.exchange import CLIENT_GONE, Refused
from slotwise.frontend.forward import SEND_S, SLOWEST_BYTES_A_S
from slotwise.frontend.grpc.call import Call


class CallMessages:
    """The messages of one call. waiting: bytes of pieces that the client has not taken yet, untaken: of whole answers, too.

    cut_off: it is to get no more.
    """

    def __init__(self) -> None:
        self.messages: deque[tuple[bytes, int]] = deque()  # each with what of it counts as waiting
        self.waiting = self.untaken = 0
        self.over = self.cut_off = False
        self.came, self.fewer = asyncio.Event(), asyncio.Event()
        self.writing: asyncio.Timeout | None = None
        self._put = self._taken = 0

    def put(self, message: bytes) -> None:
        """One more, a piece of an answer."""
        self._add(message, len(message))

    async def put_whole(self, message: bytes) -> None:
        """One more, a whole answer. Returns when the client has taken it, or is cut off because it is too slow."""
        self._add(message, 0)
        await self.taken()

    async def taken(self) -> None:
        """Wait until the client has taken all that is there now. Who is too slow is cut off."""
        until = self._put
        try:
            async with asyncio.timeout(SEND_S + self.untaken / SLOWEST_BYTES_A_S):
                while self._taken < until and not self.cut_off:
                    self.fewer.clear()
                    await self.fewer.wait()
        except TimeoutError:
            self.cut()

    def close(self) -> None:
        """There is no more of them."""
        self.over = True
        self.came.set()

    def cut(self) -> None:
        """The client is to get no more: it does not read. May be called twice."""
        if self.cut_off:
            return
        self.cut_off = True
        self.messages.clear()
        self.came.set()
        self.fewer.set()
        if self.writing is not None:
            self.writing.reschedule(0)

    async def write_to(self, call: Call) -> None:
        """Write them as they come, until there are no more. Raises Refused where the client is cut off."""
        try:
            async with asyncio.timeout(None) as self.writing:
                while not (self.over or self.cut_off) or self.messages:
                    await self.came.wait()
                    self.came.clear()
                    while self.messages:
                        message, counted = self.messages.popleft()
                        await call.write(message)
                        self.waiting -= counted
                        self.untaken -= len(message)
                        self._taken += 1
                        self.fewer.set()
        except TimeoutError:
            pass
        finally:
            self.writing = None
        if self.cut_off:
            raise Refused(CLIENT_GONE, "the client does not read its stream")

    def _add(self, message: bytes, counted: int) -> None:
        if self.cut_off:
            return
        self.waiting += counted
        self.untaken += len(message)
        self._put += 1
        self.messages.append((message, counted))
        self.came.set()
