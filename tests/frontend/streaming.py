"""A backend that streams, in place of a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused

HEADERS = [(b"content-type", b"text/event-stream"), (b"x-batch-slot", b"0"), (b"x-secret-not", b"a")]


@dataclass
class Streaming:
    """A backend that does what a body says: words are pieces; "wait" waits for the client to go, "gate" also for the gate;
    "!500" refuses, "?500" is the model's own error; "forever" has no end.
    """

    gone: list[str] = field(default_factory=list)
    asked: list[BackendRequest] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        self.asked.append(request)
        left = asyncio.Event()
        request.leave = left.set
        if request.pieces is None:
            return BackendAnswer(200, [(b"content-type", b"text/plain")], request.body)
        for word in request.body.decode().split():
            if word.startswith("!"):
                raise Refused(int(word[1:]), "on purpose")
            if word.startswith("?"):
                return BackendAnswer(int(word[1:]), [(b"x-batch-slot", b"0")], b'{"error": {"code": 1, "message": "its own"}}')
            if word == "forever":
                while not left.is_set():
                    request.pieces.take(HEADERS, b'{"text": "%b"}' % (b"x" * 10_000))
                    await asyncio.sleep(0)
            elif word == "wait":
                await left.wait()
            elif word == "gate":
                either = [asyncio.ensure_future(event.wait()) for event in (left, self.gate)]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for one in either:
                    one.cancel()
            else:
                request.pieces.take(HEADERS, word.encode() if word[0] == "{" else b'{"text": "%b"}' % word.encode())
            if left.is_set():
                self.gone.append(request.identity)
                raise Refused(499, "its client has gone")
            await asyncio.sleep(0)
        return BackendAnswer(200, HEADERS, b"")
