"""The hot path: a request in, the server's answer out.

Inference is idempotent and the body stays in memory until it is answered, so a broken connection, or a 5xx that no
slot wrote (a dead worker), is tried once more within the deadline. A slot's own error is an answer like any other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from slotwise.gateway import replies
from slotwise.gateway.gateway import Gateway
from slotwise.gateway.limits import ClientGone
from slotwise.gateway.replies import Headers, Refused
from slotwise.gateway.upstream import Answer, Upstream

log = logging.getLogger("slotwise.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_KEPT = {b"content-type", b"accept", b"content-encoding"}
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}").fullmatch
_FORM = re.compile(rb"[A-Za-z0-9%+&=*._\-]+").fullmatch
CLIENT_GONE = 499  # nobody sees it but the log and the metrics


@dataclass
class Ask:
    """One request: who asks what until when. `deadline` is on time.monotonic's clock."""

    model: str
    target: str
    identity: str
    headers: dict[str, str]
    length: int | None
    deadline: float
    body: bytes = b""
    held_bytes: int = 0
    sent_at: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class Forward:
    """The ASGI endpoint that sends a request to a model: `model` fixes which, else the path names it."""

    def __init__(self, gateway: Gateway, model: str = "") -> None:
        self.gateway, self.model = gateway, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        model = self.model or scope["path_params"]["model"]
        ask = Ask(model, "", replies.request_id(None), {}, None, time.monotonic() + self.gateway.options.timeout_s)
        batch_size = 0.0
        try:
            self._read_head(ask, scope)
            answer = await self._answer(ask, receive)
            status, headers, body = answer.status, replies.passed_on(answer.headers), answer.body
            batch_size = _number(headers, b"x-batch-size")
            if status >= 400:
                headers = [h for h in headers if h[0] != b"content-type"] + [replies.JSON_TYPE]
                body = replies.error_from_server(status, body, ask.identity)
                if status == 503:
                    headers.append((b"retry-after", b"1"))
        except Refused as refused:
            status, headers = refused.status, [replies.JSON_TYPE, *refused.headers()]
            body = replies.error_body(status, refused.message, ask.identity)
        except ClientGone:
            status, headers, body = CLIENT_GONE, [], b""
        finally:
            self.gateway.held.give(ask.held_bytes)
        seconds = None if ask.sent_at is None else time.monotonic() - ask.sent_at
        self.gateway.metrics.answer(self.gateway.label(model), status, seconds, int(batch_size))
        if status >= 400:
            level = logging.WARNING if status >= 500 else logging.INFO
            log.log(level, "%s %s %d %s", ask.identity, ask.target, status, body[:500].decode("utf-8", "replace"))
        if status != CLIENT_GONE:
            await self._send(send, ask, status, headers, body, seconds)

    def _read_head(self, ask: Ask, scope: Scope) -> None:
        """Model, headers, length and deadline; refuse here what needs no body to be refused."""
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        ask.identity = replies.request_id(given.get(b"x-request-id"))
        if not _MODEL(ask.model):
            raise Refused(404, "there is no such model")
        version = scope["path_params"].get("version", "")
        if version and not _MODEL(version):
            raise Refused(404, "there is no such version")
        query = scope["query_string"].decode("latin-1")
        ask.target = f"/predictions/{ask.model}" + (f"/{version}" if version else "") + (f"?{query}" if query else "")
        if b"x-deadline-ms" in given:
            ask.deadline = min(ask.deadline, _deadline(given[b"x-deadline-ms"]))
        ask.headers = {n.decode(): v for n, v in given.items() if n in _KEPT or n[:2] == b"x-"}
        ask.headers["x-request-id"] = ask.identity
        ask.headers["x-deadline-ms"] = str(int((time.time() + ask.left_s) * 1000))
        if b"content-length" in given:
            ask.length = int(given[b"content-length"])
            self._refuse_if_large(ask.length)
        self.gateway.limit(ask.model).refuse_if_full()

    def _refuse_if_large(self, count: int) -> None:
        if count > self.gateway.max_body_bytes:
            raise Refused(413, f"the body is over the limit of {self.gateway.max_body_bytes} bytes", close=True)

    async def _answer(self, ask: Ask, receive: Receive) -> Answer:
        """Read the body, wait for a place, ask the server."""
        try:
            async with asyncio.timeout(max(ask.left_s, 0)):
                await self._read_body(ask, receive)
        except TimeoutError:
            raise Refused(504, "the deadline passed before the body had arrived", close=True) from None
        if ask.headers.get("content-type", "").startswith("application/x-www-form-urlencoded") and not _FORM(ask.body):
            ask.headers["content-type"] = "application/octet-stream"  # curl --data-binary says so of every file
        ask.sent_at = time.monotonic()
        limit = self.gateway.limit(ask.model)
        await limit.enter(ask.left_s, receive)
        try:
            return await self._ask_twice(ask)
        finally:
            limit.leave()

    async def _read_body(self, ask: Ask, receive: Receive) -> None:
        """The whole body, never more than the limits allow. Raises Refused or ClientGone."""
        chunks: list[bytes] = []
        if ask.length is not None:
            self._hold(ask, ask.length)
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            if chunk:
                size += len(chunk)
                self._refuse_if_large(size)
                if size > ask.held_bytes:
                    self._hold(ask, size - ask.held_bytes)
                chunks.append(chunk)
            if not message.get("more_body", False):
                break
        ask.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _hold(self, ask: Ask, count: int) -> None:
        self.gateway.held.take(count)
        ask.held_bytes += count

    async def _ask_twice(self, ask: Ask) -> Answer:
        """The server's answer; one more try where the server, not a slot, failed."""
        answer, broken = await self._ask(ask, fresh=False)
        if broken or (answer and answer.status >= 500 and not answer.from_slot):
            self.gateway.metrics.retries.labels(self.gateway.label(ask.model)).inc()
            log.warning("%s %s retried: %s", ask.identity, ask.model, broken or (answer and answer.status))
            again, broken = await self._ask(ask, fresh=True)
            answer = again or answer
        if answer is None:
            raise Refused(502, "the model server cannot be reached")
        return answer

    async def _ask(self, ask: Ask, fresh: bool) -> tuple[Answer | None, str]:
        """One try: the answer, or how the connection broke. Raises Refused (502, 504)."""
        upstream = self.gateway.upstream
        if upstream is None:
            raise Refused(502, "no model server is running")
        try:
            answer = await self._send_with_token(upstream, ask, fresh)
        except aiohttp.ClientError as error:
            return None, type(error).__name__
        except TimeoutError:
            raise Refused(504, "the model server did not answer before the deadline") from None
        except OSError as error:
            return None, type(error).__name__
        return answer, ""

    async def _send_with_token(self, upstream: Upstream, ask: Ask, fresh: bool) -> Answer:
        if ask.left_s <= 0:
            raise Refused(504, "the deadline has passed")
        token = upstream.token
        answer = await upstream.send(ask.target, ask.headers, ask.body, ask.left_s, fresh)
        refused = answer.status in (400, 401, 403) and not answer.from_slot and b"oken" in answer.body
        if refused and upstream.token == token:
            await upstream.renew_token()
        if refused and upstream.token != token:  # perhaps by another request that was refused beside this one
            return await upstream.send(ask.target, ask.headers, ask.body, ask.left_s, fresh)
        return answer

    async def _send(self, send: Send, ask: Ask, status: int, headers: Headers, body: bytes, seconds: float | None) -> None:
        headers += [(b"x-request-id", ask.identity.encode()), (b"content-length", b"%d" % len(body)), *replies.ANSWER]
        if seconds is not None:
            total_ms = seconds * 1000
            worked_ms = _number(headers, b"x-decode-ms") + _number(headers, b"x-inference-ms")
            headers.append((b"x-queue-ms", b"%.2f" % max(total_ms - worked_ms, 0)))
            headers.append((b"x-total-ms", b"%.2f" % total_ms))
        if self.gateway.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _deadline(given: str) -> float:
    """A client's x-deadline-ms (Unix time) on time.monotonic's clock."""
    try:
        wanted_s = float(given) / 1000
    except ValueError:
        wanted_s = math.nan
    if not math.isfinite(wanted_s):
        raise Refused(400, "x-deadline-ms must be a Unix time in milliseconds")
    return time.monotonic() + (wanted_s - time.time())


def _number(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> float:
    """A header as a number, 0 where it is missing or is none."""
    for found, value in headers:
        if found == name:
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 0.0
