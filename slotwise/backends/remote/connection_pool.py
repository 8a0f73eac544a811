"""The connections to one model server: kept alive, taken by one request at a time, the one that was used last first."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from slotwise.client.http_exchange import (
    REPLY_MAX_BYTES,
    REQUEST_ID,
    HttpExchange,
    RawReply,
    connected,
    is_anothers,
    request_head,
)

KEPT = 512
KEPT_S = 15.0


class ConnectionPool:
    """Connections to the server at `url`, each opened when there is none to take."""

    def __init__(self, url: str, reply_max_bytes: int = REPLY_MAX_BYTES) -> None:
        parts = urlsplit(url)
        self._address, self._host = (parts.hostname or "", parts.port or 80), parts.netloc
        self._reply_max_bytes = reply_max_bytes
        self._idle: deque[HttpExchange] = deque()
        self._closed = False
        self._asked = itertools.count(1)

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", fresh: bool = False
    ) -> RawReply:
        """The answer to one request. `fresh` takes a new connection, not one that may be stale.

        Every request has a number, which a worker of ours gives back. An answer to another one is nobody's, and ends the
        connection: TorchServe was seen to answer a request twice, and from then on each got the answer of the one before.
        Raises OSError where that happens or the connection breaks, ValueError where the head would be more than one.
        """
        number = str(next(self._asked))
        about = {"host": self._host, "content-length": str(len(body)), **headers, REQUEST_ID: number}
        head = request_head(method, target, about)
        exchange = None if fresh else self._taken()
        if exchange is None:
            exchange = await connected(*self._address, self._reply_max_bytes)
        try:
            reply = await exchange.ask(head, body)
            if is_anothers(reply, number):
                exchange.close()
                raise ConnectionError("the server gave the answer to another request")
            return reply
        finally:
            self._keep(exchange)

    def _taken(self) -> HttpExchange | None:
        while self._idle:
            exchange = self._idle.pop()
            if exchange.usable:
                return exchange
            exchange.close()
        return None

    def _keep(self, exchange: HttpExchange) -> None:
        now = exchange.idle_since = asyncio.get_running_loop().time()
        if self._closed or not exchange.usable:
            exchange.close()
        else:
            self._idle.append(exchange)
        while self._idle and (len(self._idle) > KEPT or now - self._idle[0].idle_since > KEPT_S):
            self._idle.popleft().close()

    def close(self) -> None:
        """Close those that wait; one that is in use is closed after its answer."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
