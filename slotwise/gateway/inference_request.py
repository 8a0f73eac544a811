"""Read one request to a model: its head and its body, within the limits. What can be refused early is refused here."""

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

_PASSED_ON = {b"content-type", b"accept", b"content-encoding"}
_MODEL = re.compile(NAME).fullmatch
_FORM = re.compile(rb"[A-Za-z0-9%+&=*._\-]+").fullmatch


@dataclass
class InferenceRequest:
    """A request to a model. target: path and query for the server. length: the content-length, None where it is not given.

    deadline, sent_at (when it began to wait for a place): on time.monotonic's clock. body_memory_bytes: taken for the body.
    """

    gateway: Gateway
    model: str
    deadline: float
    identity: str = field(default_factory=replies.new_id)
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    body: bytes = b""
    body_memory_bytes: int = 0
    sent_at: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def read_head(self, scope: Scope) -> None:
        """Read path, headers, length and deadline. Raises Refused (400, 404, 413, 429)."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self.identity = replies.request_id(headers.get(b"x-request-id")) or self.identity
        version, query = scope["path_params"].get("version", ""), scope["query_string"].decode("latin-1")
        if not _MODEL(self.model) or (version and not _MODEL(version)):
            raise Refused(404, "there is no such model")
        self.target = f"/predictions/{self.model}" + (f"/{version}" if version else "") + (f"?{query}" if query else "")
        if b"x-deadline-ms" in headers:
            self.deadline = min(self.deadline, _deadline(headers[b"x-deadline-ms"]))
        self.headers = {n.decode(): v for n, v in headers.items() if n in _PASSED_ON or n[:2] == b"x-"}
        self.headers["x-request-id"] = self.identity
        self.headers["x-deadline-ms"] = str(int((time.time() + self.left_s) * 1000))
        if b"content-length" in headers:
            self.length = int(headers[b"content-length"])
            self._refuse_if_large(self.length)
        self.gateway.limit(self.model).refuse_if_full()

    async def read_body(self, receive: Receive) -> None:
        """Read the whole body, before the deadline and within the limits. Raises Refused (413, 429, 504) or ClientGone."""
        try:
            async with asyncio.timeout(max(self.left_s, 0)):
                self.body = await self._read(receive)
        except TimeoutError:
            raise Refused(504, "the deadline passed before the body had arrived", close=True) from None
        if self.headers.get("content-type", "").startswith("application/x-www-form-urlencoded") and not _FORM(self.body):
            self.headers["content-type"] = "application/octet-stream"  # curl --data-binary gives every file the type of a form

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
            self._take_memory(size)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _refuse_if_large(self, count: int) -> None:
        if count > self.gateway.max_body_bytes:
            raise Refused(413, f"the body is over the limit of {self.gateway.max_body_bytes} bytes", close=True)

    def _take_memory(self, count: int) -> None:
        """Take memory for `count` bytes of body in all. Raises Refused (429)."""
        if count > self.body_memory_bytes:
            self.gateway.body_memory.take(count - self.body_memory_bytes)
            self.body_memory_bytes = count

    def release_body(self) -> None:
        """Forget the body; nobody needs it any more."""
        self.gateway.body_memory.give_back(self.body_memory_bytes)
        self.body, self.body_memory_bytes = b"", 0


def _deadline(text: str) -> float:
    """A client's x-deadline-ms (Unix time) on time.monotonic's clock."""
    try:
        unix_s = float(text) / 1000
    except ValueError:
        unix_s = math.nan
    if not math.isfinite(unix_s):
        raise Refused(400, "x-deadline-ms must be a Unix time in milliseconds")
    return time.monotonic() + (unix_s - time.time())
