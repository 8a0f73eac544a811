"""The hot path: a request in, the server's answer out.

Inference is idempotent and the body stays in memory until it is answered. So what breaks is tried once more, and what is
late is asked for again beside the first, within the deadline (race.py). A slot's own error is an answer like any other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import aiohttp

from slotwise.errors import SlotwiseError
from slotwise.gateway import replies
from slotwise.gateway.gateway import Gateway
from slotwise.gateway.inference_request import InferenceRequest, Receive, Scope
from slotwise.gateway.limits import ClientGone
from slotwise.gateway.race import Race
from slotwise.gateway.replies import RawHeaders, Refused
from slotwise.gateway.upstream import ConnectionBroken, ServerAnswer, Upstream

log = logging.getLogger("slotwise.gateway")

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CLIENT_GONE = 499  # nobody sees it but the log and the metrics


class Forward:
    """The ASGI endpoint that sends a request to a model: `model` fixes which, else the path names it."""

    def __init__(self, gateway: Gateway, model: str = "") -> None:
        self.gateway, self.model = gateway, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        model = self.model or scope["path_params"]["model"]
        ask = InferenceRequest(self.gateway, model, time.monotonic() + self.gateway.options.timeout_s)
        try:
            ask.read_head(scope)
            await ask.read_body(receive)
            status, headers, body = _reply(await self._answer(ask, receive), ask)
        except Refused as refused:
            status, headers = refused.status, [replies.JSON_TYPE, *refused.headers()]
            body = replies.error_body(status, refused.message, ask.identity)
        except ClientGone:
            status, headers, body = CLIENT_GONE, [], b""
        except Exception:
            log.exception("%s %s", ask.identity, ask.target)
            status, headers, body = 500, [replies.JSON_TYPE], replies.error_body(500, replies.CRASH, ask.identity)
        finally:
            ask.let_go()
        seconds = None if ask.sent_at is None else time.monotonic() - ask.sent_at
        self.gateway.metrics.answer(self.gateway.label(model), status, seconds, int(_number(headers, b"x-batch-size")))
        if status >= 400:
            level = logging.WARNING if status >= 500 else logging.INFO
            log.log(level, "%s %s %d %s", ask.identity, ask.target, status, body[:500].decode("utf-8", "replace"))
        if status != CLIENT_GONE:
            await self._send(send, ask, status, headers, body, seconds)

    async def _answer(self, ask: InferenceRequest, receive: Receive) -> ServerAnswer:
        """Wait for a place, then ask the server."""
        ask.sent_at = time.monotonic()
        limit = self.gateway.limit(ask.model)
        await limit.enter(ask.left_s, receive)
        try:
            return await Race(ask, lambda fresh: self._attempt(ask, fresh)).run()
        finally:
            limit.leave()

    async def _attempt(self, ask: InferenceRequest, fresh: bool) -> ServerAnswer:
        """Send the request once. Raises Broken where the connection failed, Refused (502, 504)."""
        upstream = self.gateway.upstream
        if upstream is None:
            raise Refused(502, "no model server is running")
        try:
            with upstream.busy():  # while its token is renewed, too
                return await self._send_with_token(upstream, ask, fresh)
        except aiohttp.ClientError as error:  # before TimeoutError: a connection that takes too long is both
            raise ConnectionBroken(type(error).__name__) from error
        except TimeoutError:
            raise Refused(504, "the model server did not answer before the deadline") from None
        except OSError as error:
            raise ConnectionBroken(type(error).__name__) from error
        except SlotwiseError as error:
            log.warning("%s %s", ask.identity, error)
            return ServerAnswer(503, [], b"the model server's token could not be renewed")

    async def _send_with_token(self, upstream: Upstream, ask: InferenceRequest, fresh: bool) -> ServerAnswer:
        if ask.left_s <= 0:
            raise Refused(504, "the deadline has passed")
        token = upstream.token
        answer = await upstream.send(ask.target, ask.headers, ask.body, ask.left_s, fresh)
        refused = answer.status in (400, 401, 403) and not answer.from_slot and b"oken" in answer.body
        if refused:
            async with asyncio.timeout(ask.left_s):
                await upstream.renew_token(token)
        if refused and upstream.token != token:  # perhaps by another request that was refused beside this one
            return await upstream.send(ask.target, ask.headers, ask.body, ask.left_s, fresh)
        return answer

    async def _send(
        self, send: Send, ask: InferenceRequest, status: int, headers: RawHeaders, body: bytes, seconds: float | None
    ) -> None:
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


def _reply(answer: ServerAnswer, ask: InferenceRequest) -> tuple[int, RawHeaders, bytes]:
    """The server's answer as the client gets it: an error in the one shape that errors have."""
    headers = replies.passed_on(answer.headers)
    if answer.status < 400:
        return answer.status, headers, answer.body
    headers = [header for header in headers if header[0] != b"content-type"] + [replies.JSON_TYPE]
    if answer.status == 503:
        headers.append((b"retry-after", b"1"))
    return answer.status, headers, replies.error_from_server(answer.status, answer.body, ask.identity)


def _number(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> float:
    """A header as a number, 0 where it is missing or is none."""
    for found, value in headers:
        if found == name:
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 0.0
