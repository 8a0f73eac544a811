"""What sees a front's requests from their first byte to their end, and tells whoever wants to know: log, memory, traces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slotwise.backends.exchange import CLIENT_GONE, RawHeaders
from slotwise.backends.request_way import RequestWay, SaidBatch
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.observing.remembered import Remembered
from slotwise.frontend.observing.seen_request import SeenRequest, new_span_id, new_trace_id, shown_path
from slotwise.frontend.replies import phrase
from slotwise.frontend.traffic import BatchWork

SEEN = "slotwise.seen"  # in a scope: the SeenRequest
PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch
OWN_ANSWER = "the model answered so"
GONE = "its client has gone"
MOST_PATHS, LONGEST_PATH = 1024, 400  # that are kept


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

    def __post_init__(self) -> None:
        self._models: Container[str] = ()
        self._paths: dict[str, str] = {}

    def begin(self, scope: dict[str, Any]) -> SeenRequest:
        """A request has come whose head says this, as ASGI has it. From here on it stands in the scope."""
        headers: RawHeaders = scope["headers"]
        peer = (scope.get("client") or ("",))[0]
        seen = SeenRequest(scope.get("method", ""), self._path(scope.get("path", "")), self.trusted.client(peer, headers))
        given = [value for name, value in headers if name == b"traceparent"]
        if self.propagates or given:
            seen.trace_id, seen.parent, word = _parent(given)
            seen.trace_id, seen.span_id = seen.trace_id or new_trace_id(), new_span_id()
            seen.sampled = self.sample(word)
            seen.propagates = self.propagates and (seen.sampled or bool(seen.parent))
        scope[SEEN] = seen
        return seen

    def _path(self, path: str) -> str:
        """As `shown_path` has it; nearly every request has one that was seen before."""
        known = self.known()
        if known is not self._models or len(self._paths) > MOST_PATHS:
            self._models, self._paths = known, {}
        shown = self._paths.get(path)
        if shown is None:
            shown = shown_path(path, known)
            if len(path) < LONGEST_PATH:
                self._paths[path] = shown
        return shown

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
            seen.reason = GONE if seen.status == CLIENT_GONE else phrase(seen.status)
        for watcher in self.watchers:
            watcher.ended(seen)

    def refused(self, peer: str, identity: str, status: int, reason: str) -> None:
        """Something was refused that is no request, or not yet."""
        seen = SeenRequest("-", "-", peer)
        seen.identity, seen.reason = identity, reason
        self._tell(seen, status, 0)


def answered(way: RequestWay, sent_at: float | None, work: BatchWork, headers: RawHeaders) -> None:
    """A model's request is answered: what its headers say stands in for what no queue of ours has told."""
    now = time.time()
    if sent_at is not None and not way.placed:
        way.placed = now - (time.monotonic() - sent_at)
    if work.batch_size:
        slot = b"" if way.tries else next((value for name, value in headers if name == b"x-batch-slot"), b"")
        at_slot = int(slot) if slot.isdigit() and len(slot) < 6 else 0
        way.said = SaidBatch(work.batch_size, at_slot, work.decode_ms, work.inference_ms, now)


def _parent(given: Sequence[bytes]) -> tuple[int, int, bool | None]:
    """The trace, the span that asked and whether it is sampled, by a W3C traceparent; 0, 0, None where none is good."""
    match = PARENT(given[0]) if len(given) == 1 else None
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return 0, 0, None
    return int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1)
