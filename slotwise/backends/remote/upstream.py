"""One model server as the front end sees it: its connections, its token, and what is in flight there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotwise.backends.interface import BackendAnswer, BackendRequest
from slotwise.backends.remote.connection_pool import ConnectionPool
from slotwise.client import triton_protocol

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

METRICS_S = 5.0
GRACE_S = 0.5  # past the deadline a worker answers 504 itself, with its slot; it gets this long to do so


class ConnectionBroken(Exception):
    """A connection to the server failed; the text says how."""


class Upstream:
    """The connections to one server. Requests within `busy` are counted, so that `drained` can wait for them."""

    def __init__(self, record: ServerRecord, auth: Callable[[ServerRecord], Mapping[str, str]], max_answer_bytes: int) -> None:
        self.record, self._auth, self._max_answer_bytes = record, auth, max_answer_bytes
        self.in_flight = 0
        self.token: Mapping[str, str] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._pool = ConnectionPool(record.inference_url, max_answer_bytes)
        self._on_triton = record.kind == "triton"

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

    async def send(self, target: str, headers: Mapping[str, str], body: bytes, timeout_s: float, fresh: bool) -> BackendAnswer:
        """POST `body` to `target` (path and query). `fresh` takes a new connection, not one that may be stale.

        Raises OSError when the connection failed, TimeoutError (which is one) after `timeout_s` and a little grace.
        """
        headers = {**headers, **self.token}
        if self._on_triton:
            sent = triton_protocol.request(target, headers, body)
            target, headers, body = sent.path, sent.headers, sent.body
        async with asyncio.timeout(timeout_s + GRACE_S):
            answer = BackendAnswer(*await self._pool.request("POST", target, headers, body, fresh))
        return _plain(answer) if self._on_triton else answer

    async def metrics(self) -> BackendAnswer:
        """The server's own Prometheus metrics, which need no token. Raises OSError."""
        pool = ConnectionPool(self.record.metrics_url, self._max_answer_bytes)
        try:
            async with asyncio.timeout(METRICS_S):
                return BackendAnswer(*await pool.request("GET", "/metrics", {}))
        finally:
            pool.close()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight here; false when that takes longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


def _plain(answer: BackendAnswer) -> BackendAnswer:
    """Triton's answer as TorchServe would have given it."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    plain = triton_protocol.answer(answer.status, headers, answer.body)
    return BackendAnswer(
        plain.status, [(k.encode("latin-1"), v.encode("latin-1")) for k, v in plain.headers.items()], plain.body
    )


def target_of(request: BackendRequest, record: ServerRecord) -> str:
    """Path and query for the server. They name the version that a request was read for: another may be the default by now."""
    read_for = request.read_for
    if request.version or read_for is None or not read_for.version or record.kind == "mms":  # which knows no versions
        return request.target
    path, mark, query = request.target.partition("?")
    return f"{path}/{read_for.version}{mark}{query}"
