"""What sees a front's requests from their first byte to their end, and tells whoever wants to know: log, memory, traces."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slotwise.backends.exchange import CLIENT_GONE
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.observing.remembered import Remembered
from slotwise.frontend.observing.seen_request import SeenRequest, shown_path
from slotwise.frontend.replies import phrase

SEEN = "slotwise.seen"  # in a scope: the SeenRequest
PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch
OWN_ANSWER = "the model answered so"
GONE = "its client has gone"
MOST_PATHS, LONGEST_PATH = 1024, 400  # that are kept
TOGETHER, TELL_S = 32, 1.0  # so many requests that ended, or so long after the first of them


class Watcher(Protocol):
    """Whoever wants to know of requests."""

    def keeps(self, seen: SeenRequest) -> bool:
        """Whether it wants to know of this one, which has ended. Of its path, address and key nothing is known yet."""

    def ended(self, seen: SeenRequest) -> None:
        """One has ended that it keeps."""


@dataclass
class Observer:
    """Sees requests. remembered: those that ended, where they are kept. known(): the models that there are.

    sample(parent's word): whether a trace is kept whatever becomes of it. propagates: the trace's id goes on to whoever
    answers. late_s: of a request that is not kept in any case nothing is noted before something goes wrong, or it has taken so
    long, and watchers are told of some at once, a moment later; None: of each its whole way is noted, and told at its end.
    """

    trusted: TrustedProxies
    known: Callable[[], Container[str]]
    watchers: Sequence[Watcher] = ()
    remembered: Remembered | None = None
    sample: Callable[[bool | None], bool] = lambda parent: bool(parent)
    propagates: bool = False
    late_s: float | None = None

    def __post_init__(self) -> None:
        self._models: Container[str] = ()
        self._paths: dict[str, str] = {}
        self._ended: list[SeenRequest] = []  # of which watchers have not been told
        self._telling: asyncio.TimerHandle | None = None

    def begin(self, scope: dict[str, Any]) -> SeenRequest:
        """A request has come whose head says this, as ASGI has it. From here on it stands in the scope."""
        seen = scope[SEEN] = SeenRequest(scope.get("method", ""))
        given: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"traceparent":
                given.append(value)
        parent = _parent(given) if given else None
        if parent is not None:
            trace_id, seen.parent, word = parent
            seen.trace(trace_id)
            seen.sampled, seen.propagates = self.sample(word), self.propagates
        elif self.propagates or given:
            seen.traced = True
            if self.sample(None):
                seen.sampled, seen.propagates = True, self.propagates
            else:
                seen.late_s = self.late_s
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
        seen: SeenRequest = scope[SEEN]
        seen.status = status or seen.status or CLIENT_GONE
        seen.bytes_out = bytes_out
        seen.seconds = time.monotonic() - seen.began
        for watcher in self.watchers:
            if watcher.keeps(seen):
                self._date(seen, scope)
                self._tell(seen)
                return
        if self.remembered is None and (seen.tries or seen.records):
            seen.leave_batches()

    def _date(self, seen: SeenRequest, scope: Mapping[str, Any]) -> None:
        """Somebody keeps it: so add what is told of its head."""
        seen.date()
        key = scope.get("slotwise.key")
        seen.key = key.name if key else ""
        seen.path = seen.path or self._path(scope.get("path", ""))
        seen.address = self.trusted.client((scope.get("client") or ("",))[0], scope["headers"])
        if seen.status >= 400 and not seen.reason:
            seen.reason = GONE if seen.status == CLIENT_GONE else phrase(seen.status)

    def _tell(self, seen: SeenRequest) -> None:
        """Tell who keeps it; several at once take less time."""
        self._ended.append(seen)
        if self.late_s is None or len(self._ended) >= TOGETHER:
            self.flush()
        elif self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self.flush)

    def flush(self) -> None:
        """Tell of all that have ended."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        ended, self._ended = self._ended, []
        for seen in ended:
            for watcher in self.watchers:
                if watcher.keeps(seen):
                    watcher.ended(seen)
            if self.remembered is None:
                seen.leave_batches()

    def refused(self, peer: str, identity: str, status: int, reason: str) -> None:
        """Something was refused that is no request, or not yet."""
        seen = SeenRequest("-")
        seen.date()
        seen.path, seen.address, seen.status = "-", peer, status
        seen.identity, seen.reason = identity, reason
        self._tell(seen)


def _parent(given: Sequence[bytes]) -> tuple[int, int, bool] | None:
    """The trace, the span that asked and whether it is sampled, by a W3C traceparent; None where none is good."""
    match = PARENT(given[0]) if len(given) == 1 else None
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1)
