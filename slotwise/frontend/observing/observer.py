"""What sees a front's requests from their first byte to their end, and tells whoever wants to know: log, memory, traces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders
from slotwise.backends.request_way import BatchReport, BatchWay, Mate, RequestWay, Try
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.observing.remembered import Remembered
from slotwise.frontend.observing.seen_request import SeenRequest, new_span_id, new_trace_id, shown_path
from slotwise.frontend.traffic import BatchWork

SEEN = "slotwise.seen"  # in a scope: the SeenRequest
PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch
OWN_ANSWER = "the model answered so"
GONE = "its client has gone"


class Watcher(Protocol):
    """Whoever wants to know of requests."""

    def ended(self, seen: SeenRequest) -> None:
        """One has ended."""


@dataclass
class Observer:
    """Sees requests. remembered: those that ended, where they are kept. known(): the models that there are.

    sample(parent's word): whether a trace is kept whatever becomes of it. propagates: the trace's id goes on to whoever
    answers.
    """

    trusted: TrustedProxies
    known: Callable[[], Container[str]]
    watchers: Sequence[Watcher] = ()
    remembered: Remembered | None = None
    sample: Callable[[bool | None], bool] = lambda parent: bool(parent)
    propagates: bool = False

    def begin(self, scope: dict[str, Any]) -> SeenRequest:
        """A request has come whose head says this, as ASGI has it. From here on it stands in the scope."""
        headers: RawHeaders = scope["headers"]
        trace_id, parent, word = _parent(headers)
        peer = (scope.get("client") or ("",))[0]
        seen = SeenRequest(
            trace_id=trace_id or new_trace_id(),
            span_id=new_span_id(),
            sampled=self.sample(word),
            parent=parent,
            method=scope.get("method", ""),
            path=shown_path(scope.get("path", ""), self.known()),
            protocol=f"HTTP/{scope.get('http_version', '1.1')}",
            address=self.trusted.client(peer, headers),
        )
        scope[SEEN] = seen
        return seen

    def end(self, scope: Mapping[str, Any], status: int, bytes_out: int = 0) -> None:
        """The request of this scope is answered with this status, or its client has gone: 0."""
        seen, key = scope[SEEN], scope.get("slotwise.key")
        seen.key = key.name if key else ""
        self._tell(seen, status, bytes_out)

    def _tell(self, seen: SeenRequest, status: int, bytes_out: int) -> None:
        seen.status = status or seen.status or CLIENT_GONE
        seen.bytes_out = bytes_out
        seen.seconds = time.monotonic() - seen.began
        if seen.status >= 400 and not seen.reason:
            seen.reason = GONE if seen.status == CLIENT_GONE else _phrase(seen.status)
        for watcher in self.watchers:
            watcher.ended(seen)

    def refused(self, peer: str, identity: str, status: int, reason: str) -> None:
        """Something was refused that is no request, or not yet."""
        seen = SeenRequest(identity=identity, trace_id=new_trace_id(), span_id=new_span_id(), method="-", path="-")
        seen.address, seen.reason = peer, reason
        self._tell(seen, status, 0)


def answered(seen: RequestWay, sent_at: float | None, work: BatchWork, headers: RawHeaders) -> None:
    """A model's request is answered: what its headers say stands in for what no queue of ours has told."""
    if sent_at is not None:
        seen.placed = seen.placed or time.time() - (time.monotonic() - sent_at)
    if seen.tries or not work.batch_size:
        return
    slot = next((value for name, value in headers if name == b"x-batch-slot"), b"")
    batch = BatchWay("", work.batch_size, (Mate(seen.identity, seen.trace_id, seen.span_id, seen.sampled),))
    total_ms = work.decode_ms + work.inference_ms
    batch.sent = time.time() - total_ms / 1000
    batch.report = BatchReport(batch.sent, work.decode_ms, work.inference_ms, total_ms, 0, 0, 0, "", "", ())
    seen.tries.append(Try(batch, int(slot) if slot.isdigit() and len(slot) < 6 else 0))


def _parent(headers: RawHeaders) -> tuple[int, int, bool | None]:
    """The trace, the span that asked and whether it is sampled, by a W3C traceparent; 0, 0, None where none is good."""
    given = [value for name, value in headers if name == b"traceparent"]
    match = PARENT(given[0]) if len(given) == 1 else None
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return 0, 0, None
    return int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
