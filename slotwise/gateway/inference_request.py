"""One request as it arrives: who asks which model what, until when. What can be refused is refused here."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from slotwise.gateway import replies
from slotwise.gateway.gateway import Gateway
from slotwise.gateway.limits import ClientGone
from slotwise.gateway.replies import Refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}"  # of a model, and of a version

_KEPT = {b"content-type", b"accept", b"content-encoding"}
_MODEL = re.compile(NAME).fullmatch
_FORM = re.compile(rb"[A-Za-z0-9%+&=*._\-]+").fullmatch


@dataclass
class InferenceRequest:
    """A request to a model. `deadline` and `sent_at` (its body had arrived) are on time.monotonic's clock."""

    gateway: Gateway
    model: str
    deadline: float
    identity: str = field(default_factory=replies.new_id)
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    body: bytes = b""
    held_bytes: int = 0
    sent_at: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def read_head(self, scope: Scope) -> None:
        """Path, headers, length and deadline. Raises Refused (400, 404, 413, 429)."""
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self.identity = replies.request_id(given.get(b"x-request-id")) or self.identity
        version, query = scope["path_params"].get("version", ""), scope["query_string"].decode("latin-1")
        if not _MODEL(self.model) or (version and not _MODEL(version)):
            raise Refused(404, "there is no such model")
        self.target = f"/predictions/{self.model}" + (f"/{version}" if version else "") + (f"?{query}" if query else "")
        if b"x-deadline-ms" in given:
            self.deadline = min(self.deadline, _deadline(given[b"x-deadline-ms"]))
        self.headers = {n.decode(): v for n, v in given.items() if n in _KEPT or n[:2] == b"x-"}
        self.headers["x-request-id"] = self.identity
        self.headers["x-deadline-ms"] = str(int((time.time() + self.left_s) * 1000))
        if b"content-length" in given:
            self.length = int(given[b"content-length"])
            self._refuse_if_large(self.length)
        self.gateway.limit(self.model).refuse_if_full()

    async def read_body(self, receive: Receive) -> None:
        """The whole body, in time and never more than the limits allow. Raises Refused (413, 429, 504) or ClientGone."""
        try:
            async with asyncio.timeout(max(self.left_s, 0)):
                self.body = await self._read(receive)
        except TimeoutError:
            raise Refused(504, "the deadline passed before the body had arrived", close=True) from None
        if self.headers.get("content-type", "").startswith("application/x-www-form-urlencoded") and not _FORM(self.body):
            self.headers["content-type"] = "application/octet-stream"  # curl --data-binary says so of every file

    async def _read(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            self._refuse_if_large(size)
            self._hold(size)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _refuse_if_large(self, count: int) -> None:
        if count > self.gateway.max_body_bytes:
            raise Refused(413, f"the body is over the limit of {self.gateway.max_body_bytes} bytes", close=True)

    def _hold(self, count: int) -> None:
        """Account for `count` bytes in all."""
        if count > self.held_bytes:
            self.gateway.held.take(count - self.held_bytes)
            self.held_bytes = count

    def let_go(self) -> None:
        """The body is not needed any more."""
        self.gateway.held.give(self.held_bytes)
        self.body, self.held_bytes = b"", 0


def _deadline(given: str) -> float:
    """A client's x-deadline-ms (Unix time) on time.monotonic's clock."""
    try:
        wanted_s = float(given) / 1000
    except ValueError:
        wanted_s = math.nan
    if not math.isfinite(wanted_s):
        raise Refused(400, "x-deadline-ms must be a Unix time in milliseconds")
    return time.monotonic() + (wanted_s - time.time())
