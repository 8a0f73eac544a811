"""Who may send to a model: everybody at once, or one request with nothing else in its batch.

Both servers hand a model's requests to its workers in the order in which they came. So once a later request is answered,
an earlier one has been *overtaken*: it waits in no queue any more. A worker has it in hand, or it is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

REORDER_S = 0.05  # requests on two connections may reach the server's queue in another order than they were sent
QUIET_S = 15.0  # without any answer for so long, what is on its way is taken for lost


@dataclass(eq=False)
class SentCopy:
    """One copy of a request, on its way to the server since `sent_at`."""

    sent_at: float


class SendingPermits:
    """The copies of one model's requests that are on their way, and who wants to go alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on_the_way: set[SentCopy] = set()
        self._newest_answered = float("-inf")  # when the newest request was sent that has been answered
        self._answered_at = float("-inf")
        self._wanted = 0  # by how many it is wanted to go alone
        self._taken = False  # one goes alone now
        self._one_by_one = asyncio.Lock()
        self._change = asyncio.Event()

    @property
    def in_use(self) -> bool:
        """Whether a copy is on its way, or waits to be."""
        return bool(self._on_the_way or self._wanted)

    def closed(self, may_overtake: bool = False) -> bool:
        """Whether a copy has to wait.

        may_overtake: of a late request. Such a copy goes while others are waited for: it may be they that are lost.
        """
        return self._taken or (self._wanted > 0 and not may_overtake)

    async def opened(self, may_overtake: bool = False) -> None:
        """Wait until it is not closed."""
        while self.closed(may_overtake):
            await self._change.wait()

    def enter(self) -> SentCopy:
        """A copy starts on its way; before, see that it is not closed."""
        sent = SentCopy(self._clock())
        self._on_the_way.add(sent)
        return sent

    def leave(self, sent: SentCopy, answered: bool) -> None:
        """The copy was answered, or given up."""
        self._on_the_way.discard(sent)
        if answered:
            self._answered_at = self._clock()
            self._newest_answered = max(self._newest_answered, sent.sent_at)
        if self._wanted:
            self._notify()

    def overtaken(self, sent: SentCopy) -> bool:
        """Whether a request that was sent later has been answered."""
        return self._newest_answered > sent.sent_at + REORDER_S

    def standing_still(self, sent: SentCopy, late_s: float) -> bool:
        """Whether nothing has been answered for `late_s` and nobody waits longer than this: a copy of it shows what is lost.

        Once that is answered, everything before it is overtaken. Where a worker starts, or is slow, nothing is lost; and a
        further copy of the one that will end it would end another.
        """
        oldest = min(self._on_the_way, key=lambda each: each.sent_at, default=sent)
        return oldest is sent and self._clock() - self._answered_at > late_s

    @asynccontextmanager
    async def alone(self, own: Collection[SentCopy]) -> AsyncIterator[bool]:
        """Within, nobody else sends, and no queue holds anything but `own`; false where that is not sure."""
        self._wanted += 1
        try:
            async with self._one_by_one:
                sure = await self._quiet(own)
                self._taken = True
                try:
                    yield sure
                finally:
                    self._taken = False
        finally:
            self._wanted -= 1
            self._notify()

    async def _quiet(self, own: Collection[SentCopy]) -> bool:
        """Wait until everything else that is on its way was answered or overtaken; false where nothing moves any more."""
        while not all(sent in own or self.overtaken(sent) for sent in self._on_the_way):
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._change.wait()
            except TimeoutError:
                return False
        return True

    def _notify(self) -> None:
        """Wake up whoever waits for a change."""
        changed, self._change = self._change, asyncio.Event()
        changed.set()
