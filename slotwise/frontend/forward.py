"""Forward a request to the backend, and its answer back: the hot path.

Its body stays in memory until it is answered, so the backend may send it again (backends/remote/race.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from slotwise.backends.exchange import CLIENT_GONE, AnsweredBy, RawHeaders
from slotwise.backends.interface import BackendAnswer, Refused
from slotwise.backends.request_way import NO_BATCH, BatchWork
from slotwise.frontend import replies
from slotwise.frontend.admission.fair_shares import ConcurrencyLimit
from slotwise.frontend.admission.large_work import LARGE_BYTES
from slotwise.frontend.admission.limits import ClientGone, Receive
from slotwise.frontend.events.asgi_events import AsgiEvents
from slotwise.frontend.events.event_stream import EventClient, EventStream
from slotwise.frontend.events.piece_stream import Opened, PieceStream
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.inference_request import ABORT, InferenceRequest, Scope
from slotwise.frontend.observing.observer import OWN_ANSWER
from slotwise.frontend.replies import ClientReply

log = logging.getLogger("slotwise.gateway")

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

WORK = (b"x-batch-size", b"x-decode-ms", b"x-inference-ms")
SEND_S, SLOWEST_BYTES_A_S = 30.0, 64 * 1024  # who takes an answer more slowly is cut off: it is in memory until then
NO_BODY = (204, 205, 304)  # a client would take the body for the beginning of the next answer
NO_ERROR = 400  # in place of what only this process means by CLIENT_GONE
NOT_TAKEN = "%s %s the client does not take its answer"


class Forward:
    """The ASGI endpoint that sends a request to a model.

    model: its name, or what finds it by the request's head (may raise Refused); where it is empty the path says which.
    """

    def __init__(self, gateway: Gateway, model: str | Callable[[Scope], str] = "") -> None:
        self.gateway, self.model = gateway, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        request = self.request(scope)
        abort = scope.get(ABORT)
        events = AsgiEvents(send, receive, lambda: request.leave(), abort) if abort and scope["http_version"] != "1.0" else None
        try:
            reply = await self.reply(request, scope, receive, opened=self.opens(events))
            if reply is not None:
                reply = await self.worded(request, reply)
                await _Client(send, abort).take(reply, request)
            elif events is not None:
                await events.sent()
        finally:
            request.release()

    def request(self, scope: Scope) -> InferenceRequest:
        """A new request, which has to be released in the end."""
        model = "" if callable(self.model) else self.model or scope["path_params"]["model"]
        return InferenceRequest(model, time.monotonic() + self.gateway.options.timeout_s, gateway=self.gateway)

    # What protocols of their own do differently.

    def opens(self, client: EventClient | None) -> Opened:
        """What opens the stream of a request that asks for one. client: who may get events; None: nobody."""
        return partial(EventStream.asked, client=client)

    async def prepare(self, request: InferenceRequest) -> None:
        """Put what the model is to get in the place of a body that has been read. May raise Refused."""

    async def worded(self, request: InferenceRequest, reply: ClientReply) -> ClientReply:
        """A whole reply as this protocol has it."""
        return reply

    # What all of them do alike.

    async def reply(
        self,
        request: InferenceRequest,
        scope: Scope,
        receive: Receive,
        whole: bytes | None = None,
        opened: Opened = EventStream.asked,
    ) -> ClientReply | None:
        """What its client gets; None where that has gone, or got it piece by piece.

        whole: its body, where all of it has come. opened: opens its stream, where it asks for one.
        """
        answering = self._read_and_answered(request, scope, receive, whole, opened)
        try:
            status, headers, body = await self._outcome(request, answering)
            if isinstance(request.pieces, PieceStream) and request.pieces.finish(status, headers, body):
                return None
        finally:
            if isinstance(request.pieces, PieceStream):
                request.pieces.stop()
        if status == CLIENT_GONE:
            return None
        headers += [(b"x-request-id", request.identity.encode()), (b"content-length", b"%d" % len(body)), *replies.ANSWER]
        if request.sent_at is not None:
            total_ms = (time.monotonic() - request.sent_at) * 1000
            worked_ms = request.work.decode_ms + request.work.inference_ms
            # Everything but decoding and inference: both queues, encoding, the way there and back.
            headers.append((b"x-queue-ms", b"%.2f" % max(total_ms - worked_ms, 0)))
            headers.append((b"x-total-ms", b"%.2f" % total_ms))
        if request.sent:
            headers.append((b"x-slotwise-sent", request.sent.encode()))
        if self.gateway.draining:
            headers.append((b"connection", b"close"))
        return ClientReply(status, headers, body)

    async def _read_and_answered(
        self,
        request: InferenceRequest,
        scope: Scope,
        receive: Receive,
        whole: bytes | None,
        opened: Opened,
    ) -> BackendAnswer:
        if callable(self.model):
            request.ask(self.model(scope))
        request.read_head(scope)
        pieces = opened(request, scope["headers"])
        await request.read_body(receive, whole)
        await self.prepare(request)
        request.pieces = pieces
        return await self._answer(request, receive)

    async def record(self, request: InferenceRequest, gone: asyncio.Event) -> tuple[int, RawHeaders, bytes]:
        """The reply to one record of a request that has been read, and has a place for it. gone: its client is."""
        try:
            return await self._outcome(request, self._answer(request, gone.wait))
        finally:
            request.release()

    async def _outcome(self, request: InferenceRequest, answering: Awaitable[BackendAnswer]) -> tuple[int, RawHeaders, bytes]:
        """Status, headers and body of the reply, whatever becomes of `answering`. It is counted, and an error is logged.

        From then on the request holds the memory of its reply, no longer that of its body.
        """
        reason = OWN_ANSWER
        try:
            try:
                answer = await answering
            except BaseException:
                if not request.queued:
                    self.gateway.backend.not_run(request)
                raise
            status, headers, body = _reply(answer, request)
            request.body = b""
            request.hold_bytes(len(body))
        except Refused as refused:
            request.refusal = refused.without_frames()
            reason = refused.logged
            status, headers = refused.status, [replies.JSON_TYPE, *refused.headers()]
            body = replies.error_body(refused.status, refused.message, request.identity)
        except ClientGone:
            status, headers, body, reason = CLIENT_GONE, [], b"", "the client has gone"
        except Exception:
            log.exception("%s %s", request.identity, request.label, extra=request.named)
            reason = replies.CRASH
            status, headers, body = 500, [replies.JSON_TYPE], replies.error_body(500, replies.CRASH, request.identity)
        seconds = None if request.sent_at is None else time.monotonic() - request.sent_at
        request.work = work = _work(headers)
        self.gateway.metrics.answer(request.label, status, seconds, work.batch_size, request.way)
        request.traffic.outcomes.add(status, seconds or 0.0, work)
        if status >= 400:
            level = logging.WARNING if status >= 500 else logging.INFO
            log.log(level, "%s %s %d %s", request.identity, request.label, status, reason, extra=request.named)
            request.failed(reason)
        if request.seen is not None:
            request.answered(seconds, headers)
        return status, headers, body

    async def _answer(self, request: InferenceRequest, receive: Receive) -> BackendAnswer:
        """Ask the model, or the archive that a roll-out tries in its place."""
        request.check()
        request.sent_at = time.monotonic()
        canary = self.gateway.rollouts.of(request)
        if canary is None:
            return await self._ask(request, receive)
        return await canary.answer(request, lambda either: self._ask(either, receive))

    async def _ask(self, request: InferenceRequest, receive: Receive) -> BackendAnswer:
        """Wait for a place, then ask the backend."""
        traffic = request.traffic
        traffic.chosen += 1
        try:
            return await self._placed(request, traffic.limit, receive)
        finally:
            traffic.chosen -= 1

    async def _placed(self, request: InferenceRequest, limit: ConcurrencyLimit, receive: Receive) -> BackendAnswer:
        if request.placed_in is limit:
            return await self._answered(request)
        turn = limit.admit(request.sender, request.left_s, request.weight, request.priority)
        request.bill.pay(1)
        await limit.enter(turn, request.left_s, receive)
        try:
            return await self._answered(request)
        finally:
            limit.leave(turn)

    async def _answered(self, request: InferenceRequest) -> BackendAnswer:
        read_for = request.read_for.version if request.read_for else ""
        request.answered_by = AnsweredBy(request.model, request.version or read_for)  # as far as it is known here
        answer = await self.gateway.backend.answer(request)
        request.traffic.answered |= answer.good
        return answer


@dataclass(frozen=True)
class _Client:
    """Who gets the answer. abort: cuts the connection off, where that is known."""

    send: Send
    abort: Callable[[], None] | None

    async def take(self, reply: ClientReply, request: InferenceRequest) -> None:
        """Send it; a large body is waited for until it was taken. Who is too slow is cut off."""
        status, headers, body = reply
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        if len(body) <= LARGE_BYTES:
            await self.send({"type": "http.response.body", "body": body})
            return
        try:
            async with asyncio.timeout(patience_s(body)):
                await self.send({"type": "http.response.body", "body": body, "more_body": True})
                await self.send({"type": "http.response.body"})  # waits until the client has taken most of it
        except TimeoutError:
            log.info(NOT_TAKEN, request.identity, request.label, extra=request.named)
            if self.abort:
                self.abort()
                await asyncio.sleep(0)  # until the connection knows


def patience_s(body: bytes) -> float:
    """How long a client may take for a body."""
    return SEND_S + len(body) / SLOWEST_BYTES_A_S


def _reply(answer: BackendAnswer, request: InferenceRequest) -> tuple[int, RawHeaders, bytes]:
    """The server's answer as the client gets it: an error in the one shape that errors have. Raises Refused (500)."""
    if answer.status < 200:  # a client would wait for more, and take the next answer for this one's
        raise Refused(500, f"the model answered with the status {answer.status}, which no whole answer has")
    headers = replies.passed_on(answer.headers, request.gateway.options.to_client)
    if answer.status < 400:
        return answer.status, headers, b"" if answer.status in NO_BODY else answer.body
    status = NO_ERROR if answer.status == CLIENT_GONE else answer.status  # a handler may say 499, too, and its client waits
    body = request.gateway.options.error_of(status, answer.body, request.identity)
    if body is None:
        return status, headers, answer.body
    headers = [header for header in headers if header[0] not in replies.OF_A_BODY] + [replies.JSON_TYPE]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return status, headers, body


def _work(headers: Iterable[tuple[bytes, bytes]]) -> BatchWork:
    """What the answer's headers say of its batch."""
    said = {name: value for name, value in headers if name in WORK}
    if not said:
        return NO_BATCH
    batch_size, decode_ms, inference_ms = (_number(said.get(name, b"")) for name in WORK)
    return BatchWork(int(batch_size), decode_ms, inference_ms)


def _number(text: bytes) -> float:
    """A header as a number; 0 where it is not a finite one that is at least 0."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0
