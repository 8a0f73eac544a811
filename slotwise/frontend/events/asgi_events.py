"""A client that gets events through ASGI."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from slotwise.backends.exchange import RawHeaders
from slotwise.frontend.admission.limits import Receive

Message = MutableMapping[str, Any]


class AsgiEvents:
    """Sends what is written, in a task of its own. left(): called where the client goes; abort_(): cuts its connection off."""

    def __init__(
        self, send: Callable[[Message], Awaitable[None]], receive: Receive, left: Callable[[], None], abort_: Callable[[], None]
    ) -> None:
        self.send, self.receive, self.left, self.cut_off = send, receive, left, abort_
        self.messages: deque[Message] = deque()
        self.waiting = 0
        self.came = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, headers: RawHeaders) -> None:
        """Send the head."""
        self._put({"type": "http.response.start", "status": 200, "headers": headers})
        self.tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._watch())]

    def write(self, data: bytes) -> None:
        """Send some of the body."""
        self.waiting += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        """Send the end."""
        self._put({"type": "http.response.body"})

    def abort(self) -> None:
        """Cut the connection off."""
        self.cut_off()
        for task in self.tasks:
            task.cancel()

    async def sent(self) -> None:
        """Wait until all is sent, or the connection is cut off."""
        if self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self.tasks[0])
            self.tasks[1].cancel()

    def _put(self, message: Message) -> None:
        self.messages.append(message)
        self.came.set()

    async def _send(self) -> None:
        more = True
        while more:
            await self.came.wait()
            self.came.clear()
            while self.messages:
                message = self.messages.popleft()
                await self.send(message)
                self.waiting -= len(message.get("body", b""))
                more = message["type"] == "http.response.start" or message.get("more_body", False)

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.left()
