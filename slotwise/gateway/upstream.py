"""One model server as the gateway sees it: its connections, its token, and what is in flight there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from slotwise.client import triton_protocol
from slotwise.gateway.replies import RawHeaders

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

CONNECT_S = 5.0
GRACE_S = 0.5  # past the deadline a worker answers 504 itself, with its slot; it gets this long to do so
CONNECTION_ERRORS = (aiohttp.ClientError, OSError)


class ConnectionBroken(Exception):
    """A connection to the server failed; the text says how."""


@dataclass(frozen=True)
class ServerAnswer:
    """The server's answer to one request."""

    status: int
    headers: RawHeaders
    body: bytes

    @cached_property
    def from_slot(self) -> bool:
        """Whether a handler gave this answer. Else the server did, for a worker that is dead or not there."""
        return any(name.lower() == b"x-batch-slot" for name, _ in self.headers)

    @property
    def good(self) -> bool:
        """Whether it is the client's answer: a slot's own error is one, too."""
        return self.status < 400 or self.from_slot

    @property
    def worker_died(self) -> bool:
        """Whether the worker died that had the request in hand. Both servers say so in these words, with 500 or 507."""
        return self.status >= 500 and b"Worker died" in self.body and not self.from_slot


class Upstream:
    """The connections to one server. Requests within `busy` are counted, so that `drained` can wait for them."""

    def __init__(self, record: ServerRecord, auth: Callable[[ServerRecord], Mapping[str, str]]) -> None:
        self.record, self._auth = record, auth
        self.in_flight = 0
        self.token: Mapping[str, str] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._base = record.inference_url.rstrip("/")
        self._on_triton = record.kind == "triton"
        self._pooled = self._session(force_close=False)
        self._fresh = self._session(force_close=True)

    @staticmethod
    def _session(force_close: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=force_close),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            trust_env=False,
        )

    async def renew_token(self, refused: Mapping[str, str]) -> None:
        """Read the server's token again: `refused` has expired, or somebody else has renewed it.

        Requests that call it meanwhile share one renewal, because each makes the last token worthless. Raises SlotwiseError, in
        all of them.
        """
        if self.token == refused:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew_token())
            await asyncio.shield(self._renewal)

    async def _renew_token(self) -> None:
        self.token = await asyncio.to_thread(self._auth, self.record)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Within, a request is counted, so that `drained` waits for it."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def send(self, target: str, headers: Mapping[str, str], body: bytes, timeout_s: float, fresh: bool) -> ServerAnswer:
        """POST `body` to `target` (path and query). `fresh` takes a new connection, not one that may be stale.

        Raises one of CONNECTION_ERRORS when the connection failed, TimeoutError after `timeout_s` and a little grace.
        """
        session = self._fresh if fresh else self._pooled
        headers = {**headers, **self.token}
        if self._on_triton:
            sent = triton_protocol.request(target, headers, body)
            target, headers, body = sent.path, sent.headers, sent.body
        timeout = aiohttp.ClientTimeout(total=timeout_s + GRACE_S, sock_connect=CONNECT_S)
        async with session.post(
            URL(self._base + target, encoded=True),
            data=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            answer = ServerAnswer(response.status, list(response.raw_headers), await response.read())
            return _plain(answer) if self._on_triton else answer

    async def metrics(self) -> ServerAnswer:
        """The server's own Prometheus metrics, which need no token. Raises one of CONNECTION_ERRORS, or TimeoutError."""
        url = f"{self.record.metrics_url}/metrics"
        async with self._fresh.get(url, timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as response:
            return ServerAnswer(response.status, list(response.raw_headers), await response.read())

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight here; false when that takes longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()


def _plain(answer: ServerAnswer) -> ServerAnswer:
    """Triton's answer as TorchServe would have given it."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    plain = triton_protocol.answer(answer.status, headers, answer.body)
    return ServerAnswer(
        plain.status, [(k.encode("latin-1"), v.encode("latin-1")) for k, v in plain.headers.items()], plain.body
    )
