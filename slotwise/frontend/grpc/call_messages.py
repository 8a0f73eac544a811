"""The messages of a call that is answered with several, from whoever makes them to its client."""

from __future__ import annotations

import asyncio
from collections import deque

from slotwise.backends.exchange import CLIENT_GONE, Refused
from slotwise.frontend.forward import SEND_S, SLOWEST_BYTES_A_S
from slotwise.frontend.grpc.call import Call

STILL_S, TURNS = 0.5, 16  # a client that reads takes its next message sooner, or within so many turns of a loop that is slow


class CallMessages:
    """The messages of one call. untaken: bytes that the client has not taken yet. cut_off: it is to get no more."""

    def __init__(self) -> None:
        self.messages: deque[tuple[bytes, int]] = deque()  # each with what of it counts as waiting
        self.untaken = self._waiting = 0
        self._still = False  # whether the client has not taken the message that is being written
        self.over = self.cut_off = False
        self.came, self.fewer = asyncio.Event(), asyncio.Event()
        self.writing: asyncio.Timeout | None = None
        self._watching: asyncio.Handle | None = None
        self._put = self._taken = 0

    @property
    def waiting(self) -> int:
        """Bytes of pieces that wait for the client; 0 while it takes what is written: a model may be quicker than gRPC."""
        return self._waiting if self._still else 0

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
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as self.writing:
                while not (self.over or self.cut_off) or self.messages:
                    await self.came.wait()
                    self.came.clear()
                    while self.messages:
                        message, counted = self.messages.popleft()
                        self._watching = loop.call_later(STILL_S, self._look, TURNS)
                        await call.write(message)
                        self._taken_now()
                        self._waiting -= counted
                        self.untaken -= len(message)
                        self._taken += 1
                        self.fewer.set()
        except TimeoutError:
            pass
        finally:
            self.writing = None
            self._taken_now()
        if self.cut_off:
            raise Refused(CLIENT_GONE, "the client does not read its stream")

    def _look(self, turns: int) -> None:
        """A message has been written for long; within so many turns of the loop it may be taken."""
        self._still = not turns
        if turns:
            self._watching = asyncio.get_running_loop().call_soon(self._look, turns - 1)

    def _taken_now(self) -> None:
        self._still = False
        if self._watching is not None:
            self._watching.cancel()

    def _add(self, message: bytes, counted: int) -> None:
        if self.cut_off:
            return
        self._waiting += counted
        self.untaken += len(message)
        self._put += 1
        self.messages.append((message, counted))
        self.came.set()
