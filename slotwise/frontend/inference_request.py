"""Read one request to a model: its head and its body, within the limits. What can be refused early is refused here."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from slotwise.backends.exchange import NO_ARCHIVE, RawHeaders
from slotwise.backends.interface import PATH, BackendRequest, Refused
from slotwise.backends.request_way import NO_BATCH, BatchWork
from slotwise.frontend import replies
from slotwise.frontend.admission import form_fields
from slotwise.frontend.admission.fair_shares import ConcurrencyLimit
from slotwise.frontend.admission.form_fields import STRAY_PERCENT
from slotwise.frontend.admission.key_rates import FREE, Bill
from slotwise.frontend.admission.limits import ClientGone, Receive
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.http.client_address import one_client
from slotwise.frontend.observing.observer import SEEN
from slotwise.frontend.observing.seen_request import SeenRequest

Scope = MutableMapping[str, Any]

NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}"  # of a model, and of a version

ABORT = "slotwise.abort"  # in a scope: what cuts its connection off
CERTIFICATE = "slotwise.certificate"  # in a scope: whether its client has shown a certificate of a CA that is trusted
READ_BY = ("content-type", "content-encoding", "explain", "url_path")  # headers that say what a body means
_MODEL = re.compile(NAME).fullmatch


@dataclass
class InferenceRequest(BackendRequest):
    """A request to a model, as its client sent it.

    sent_at (when it began to wait for a place): on time.monotonic's clock. memory_bytes: taken of the gateway's budget, for the
    body at first.
    """

    identity: str = field(default_factory=replies.new_id)
    gateway: Gateway = field(kw_only=True)
    client_deadline: float = math.inf  # that its client has set
    memory_bytes: int = 0
    sent_at: float | None = None
    bill: Bill = FREE  # of the request and of all that is made of it
    placed_in: ConcurrencyLimit | None = None  # where it has its place already, as a record of one that has waited
    work: BatchWork = NO_BATCH  # that its answer is from
    refusal: Refused | None = None  # why the gateway did not get it an answer

    def __post_init__(self) -> None:
        self.ask(self.model)

    def ask(self, model: str) -> None:
        """Let it go to this model."""
        self.model, self.label, self.traffic = model, self.gateway.label(model), self.gateway.traffic(model)
        self.repeatable = self.traffic.repeatable

    def read_head(self, scope: Scope) -> None:
        """Path, headers and deadline. Raises Refused (400, 403, 404, 413, 429)."""
        key = scope.get("slotwise.key")
        if key:
            self.sender, self.weight, self.priority = f"key {key.name}", key.weight, key.priority
        else:
            self.sender = self._address(scope)
        to_model = self.gateway.options.to_model
        self.headers = headers = {name: value.decode("latin-1") for raw, value in scope["headers"] if (name := to_model(raw))}
        length = next((int(value) for name, value in scope["headers"] if name == b"content-length"), None)
        self.identity = replies.request_id(headers.get("x-request-id")) or self.identity
        self.version = version = scope["path_params"].get("version", "")
        if (seen := scope.get(SEEN)) is not None:
            self._watched(seen)
        query = scope["query_string"].decode("latin-1")
        address = scope.get("raw_path", b"") + b" " + scope["query_string"]
        if b"%" in address and STRAY_PERCENT(address):
            raise Refused(400, "in the address a % is not followed by two hex digits")
        if not _MODEL(self.model) or (version and not _MODEL(version)):
            raise Refused(404, "there is no such model")
        self.target = f"{PATH}{self.model}" + (f"/{version}" if version else "") + (f"?{query}" if query else "")
        if "x-deadline-ms" in headers:
            self.client_deadline = min(self.client_deadline, _deadline(headers["x-deadline-ms"]))
        by_model = time.monotonic() + self.gateway.options.model_wait_s(self)
        self.deadline = min(max(self.deadline, by_model), self.client_deadline)
        headers["x-request-id"] = self.identity
        self.write_deadline()
        if length is not None:
            self.refuse_if_large(length)
        if key and self.gateway.keys:
            self.gateway.keys.permit(key, self.model)
            self.bill = Bill(key, self.gateway.keys.rates)
        self.gateway.killers.refuse_sender(self.model, self.sender)
        self.traffic.limit.refuse_if_full(self.sender, self.weight, self.priority)

    def _watched(self, seen: SeenRequest) -> None:
        """Somebody wants to know what becomes of it, or of what goes wrong."""
        self.seen = seen
        if seen.late_s is None:
            self.way = seen
        seen.identity, seen.model = self.identity, self.label
        if self.version:
            live = self.gateway.models.get(self.model)
            seen.version = self.version if live is not None and live.version == self.version else "*"
        if seen.propagates:
            self.headers["traceparent"] = seen.traceparent

    def answered(self, seconds: float | None, headers: RawHeaders) -> None:
        """Its outcome is known: `work`, and these headers. seconds: since it was let in; None where it was not."""
        if self.seen is not None and self.seen.late_s is not None and seconds is not None and seconds > self.seen.late_s:
            self.watch()
        if self.way is not None and self.sent_at is not None and seconds is not None:
            self.way.answered(self.sent_at, seconds, self.work, headers)

    def failed(self, reason: str) -> None:
        """Why it failed, for whoever observes it; the first reason counts."""
        if isinstance(self.seen, SeenRequest):
            self.seen.reason = self.seen.reason or reason

    def _address(self, scope: Scope) -> str:
        peer = (scope.get("client") or ("",))[0]
        return one_client(self.gateway.options.trusted_proxies.client(peer, scope["headers"]))

    async def read_body(self, receive: Receive, whole: bytes | None = None) -> None:
        """Read the whole body, before the deadline and within the limits. Raises Refused (413, 429, 504) or ClientGone.

        It gets the front's own time, however long its model lets it wait. whole: the body, where all of it has come.
        """
        if whole is not None:
            self.hold(whole)
        else:
            try:
                async with asyncio.timeout(max(min(self.left_s, self.gateway.options.timeout_s), 0)):
                    self.body = await self._read(receive)
            except TimeoutError:
                raise Refused(504, "the deadline passed before the body had arrived", close=True) from None
        if isinstance(self.seen, SeenRequest):
            self.seen.bytes_in = len(self.body)
        if "content-type" in self.headers:
            most = self.gateway.options.max_form_fields
            self.headers["content-type"] = form_fields.sent_as(self.headers["content-type"], self.body, most)

    def hold(self, body: bytes) -> None:
        """Take a body that has arrived. Raises Refused (413, 429)."""
        self.refuse_if_large(len(body))
        self.hold_bytes(len(body))
        self.body = body

    def for_record(self, i: int, body: bytes, content_type: str, placed_in: ConcurrencyLimit) -> InferenceRequest:
        """Record i of this request, as a request of its own."""
        identity = f"{self.identity}-{i}"
        headers = {**self.headers, "content-type": content_type, "accept": "application/json", "x-request-id": identity}
        headers.pop("content-encoding", None)
        record = replace(self, identity=identity, headers=headers, body=body, memory_bytes=0, sent_at=None, sent="")
        record.placed_in, record.record_of, record.answered_by = placed_in, self.identity, NO_ARCHIVE
        if isinstance(whole := self.watch(), SeenRequest):
            record.seen = record.way = whole.record(identity)
            if "traceparent" in headers:
                headers["traceparent"] = record.way.traceparent
        return record

    def suits(self, name: str) -> bool:
        """See BackendRequest."""
        gateway = self.gateway
        return self.read_for is None or (name in gateway.models and self.read_for.fits(gateway.card(name)))

    def has_place(self) -> bool:
        """Whether the model's queue has room for it."""
        return not self.traffic.limit.full

    def check(self) -> None:
        """Raise Refused (422) where this body has ended workers of the model."""
        self.gateway.killers.refuse_body(self.model, self.body, self.read_by)

    def read_by(self) -> str:
        """See BackendRequest: the version, its archive and the query, the body's type, and TorchServe's routes."""
        live = self.gateway.models.get(self.model)
        version = self.version or (live.version if live else "")
        runs = self.gateway.card(self.model, version).content
        return "\0".join([version, runs, self.target, *(self.headers.get(name, "") for name in READ_BY)])

    def convict(self) -> None:
        """Remember that this body ended workers of the model, and whose it was."""
        self.gateway.metrics.killers.labels(self.label).inc()
        self.gateway.killers.remember(self.model, self.digest, self.sender)
        self.note("convicted: its body is not sent again")

    async def _read(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size, more, memory = 0, True, self.gateway.body_memory
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk, more = message.get("body", b""), message.get("more_body", False)
                self.refuse_if_large(size + len(chunk))
                memory.comes(self.sender, size, len(chunk))
                size += len(chunk)
                self.hold_bytes(size)
                chunks.append(chunk)
        finally:
            memory.came(self.sender, size)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def refuse_if_large(self, count: int) -> None:
        """Raise Refused (413) where that is over the limit for a body."""
        if count > self.gateway.backend.max_body_bytes:
            raise Refused(413, f"the body is over the limit of {self.gateway.backend.max_body_bytes} bytes", close=True)

    def hold_bytes(self, count: int) -> None:
        """Take `count` bytes of the gateway's memory in all from now on. Raises Refused (413, 429)."""
        memory = self.gateway.body_memory
        if count > self.memory_bytes:
            memory.take(count - self.memory_bytes)
        else:
            memory.give_back(self.memory_bytes - count)
        self.memory_bytes = count

    @contextmanager
    def borrowed(self, count: int) -> Iterator[None]:
        """Within, `count` bytes more are taken. Raises Refused (413, 429)."""
        self.gateway.body_memory.take(count)
        try:
            yield
        finally:
            self.gateway.body_memory.give_back(count)

    def kept_apart(self) -> bool:
        """See BackendRequest."""
        self.memory_bytes = 0  # they are those of the request that it is a copy of
        try:
            self.hold_bytes(len(self.body))
        except Refused:
            return False
        return True

    def release(self) -> None:
        """Nothing of it is needed any more."""
        self.body = b""
        self.hold_bytes(0)


def _deadline(text: str) -> float:
    """A client's x-deadline-ms (Unix time) on time.monotonic's clock."""
    try:
        unix_s = float(text) / 1000
    except ValueError:
        unix_s = math.nan
    if not math.isfinite(unix_s):
        raise Refused(400, "x-deadline-ms must be a Unix time in milliseconds")
    return time.monotonic() + (unix_s - time.time())
