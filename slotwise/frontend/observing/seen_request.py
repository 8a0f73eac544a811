"""One request of a client, as an operator sees it: who asked what, what became of it, and why."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Sequence

from slotwise.backends.request_way import RequestWay

WORD = re.compile(
    "predictions|classify|models|invoke|caption|translation|invocations|ping|ready|healthz|metrics|server|status|docs|openapi.json|"
    "examples|static|index.html|v1|v2|health|live|infer|generate|generate_stream|versions|config|stats|repository|index|requests|top|"
    "explanations"
).fullmatch  # in a path of ours
VERBS = (":predict", ":explain")
MOST_RECORDS = 32  # of a request of many that are kept


def shown_path(path: str, known: Container[str] = ()) -> str:
    """A path for a log: words of ours and names of known models stay, anything else may be anybody's secret and is "*"."""
    return "/".join(_shown(part, known) for part in path.split("/")[:10])


def _shown(part: str, known: Container[str]) -> str:
    if not part or WORD(part) or part in known:
        return part
    for verb in VERBS:
        if part.endswith(verb):
            name = part.removesuffix(verb)
            return (name if WORD(name) or name in known else "*") + verb
    return "*"


class SeenRequest(RequestWay):
    """A client's request, over HTTP or gRPC.

    path: as `shown_path` has it; of gRPC the method. model, version: of it, as far as they are known here.
    key: its name, "" where it brought none that is good. address: whose it is. (Path, key and address are told at its end, and
    only where somebody wants to know.) parent: the span that asked, by its traceparent.
    status: HTTP's, 0 until it ends. reason: why it failed, not in a client's or a model's words. records: of a request of many,
    those that were sent first. sent: as BackendRequest's. propagates: its trace's id goes on to whoever answers.
    """

    path: str = ""
    address: str = ""
    protocol: str = "HTTP/1.1"
    model: str = ""
    version: str = ""
    key: str = ""
    parent: int = 0
    status: int = 0
    reason: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    sent: str = ""
    records: tuple[RequestWay, ...] = ()
    propagates: bool = False

    def __init__(self, method: str) -> None:
        self.method, self.began = method, time.monotonic()

    def record(self, identity: str) -> RequestWay:
        """The way of one of its records."""
        one = RequestWay()
        one.identity, one.began = identity, self.began
        if self.traced:
            one.trace(self.ids[0])
            one.sampled = self.sampled
        if len(self.records) < MOST_RECORDS:
            self.records = (*self.records, one)
        return one

    @property
    def ways(self) -> Sequence[RequestWay]:
        """What went to workers: its records, else itself."""
        return self.records or (self,)

    def date(self) -> None:
        """Note when it came, on the clock that people read; it has just ended."""
        self.came = time.time() - self.seconds
        for one in self.records:
            one.came = self.came

    def leave_batches(self) -> None:
        """Nobody asks for them any more: what knows each other in a circle would wait for the garbage collector."""
        self.tries = ()
        for one in self.records:
            one.tries = ()
