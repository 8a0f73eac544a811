"""What crosses the seam between the front end and a backend: a request, its answer, or the reason why there is none."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

from slotwise.backends.request_way import RequestWay

RawHeaders = list[tuple[bytes, bytes]]

PATH = "/predictions/"
MISSING = 404
CLIENT_GONE = 499  # for the log and the metrics; nobody is there to get it
SENDS = 3  # a clock may be set again
TOO_LATE = b"the deadline "  # a worker's words, of what it has not computed
CLOCK_S = 1.0  # by how much a worker's clock may differ
OVERLOADED = b"x-slotwise-overloaded"  # a refusal's header, by which a gateway before a host of ours knows an Overloaded


class Refused(Exception):
    """Answer `status` with the error JSON; `retry_after_s` becomes a Retry-After header, `extra` are further ones.

    logged: what a log says of it, which has none of a client's own words; "" where the message has none.
    """

    overloaded = False

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_s: int = 0,
        close: bool = False,
        extra: Iterable[tuple[bytes, bytes]] = (),
        logged: str = "",
    ) -> None:
        super().__init__(message)
        self.logged = logged or message
        self.status, self.message, self.retry_after_s, self.close = status, message, retry_after_s, close
        self.extra = extra

    @property
    def missing(self) -> bool:
        """Whether there is no such model."""
        return self.status == MISSING

    def without_frames(self) -> Self:
        """Itself, to be kept: the frames in which it was raised hold bodies, and whoever keeps it."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    def headers(self) -> RawHeaders:
        """The headers that only this refusal has."""
        headers: RawHeaders = [*self.extra]
        if self.retry_after_s:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class Overloaded(Refused):
    """There is no place in its model's queue, or its turn would come too late: so many ask, whatever the model is like."""

    overloaded = True

    def headers(self) -> RawHeaders:
        """As any refusal's, and what it is."""
        return [*super().headers(), (OVERLOADED, b"1")]


class NotLoaded(Refused):
    """The model is registered, and its server loads it anew just now."""

    def __init__(self) -> None:
        super().__init__(503, "the model is being loaded again, try again later", retry_after_s=1)

    @property
    def missing(self) -> bool:
        """For now, it is."""
        return True


class Asleep(Refused):
    """The model has no workers while nobody asks it, and is being woken up."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(503, "the model sleeps, and is being woken up", retry_after_s)


class PieceSink(Protocol):
    """Who takes the pieces of an answer as they come. needed: a whole answer will not do."""

    needed: bool

    def take(self, headers: RawHeaders, piece: bytes) -> None:
        """The next piece: an object of JSON on one line. headers: of the answer, the same each time.

        Raises Refused where the answer need not go on.
        """


def digest_of(model: str, body: bytes, read_by: str = "") -> bytes:
    """Of a body for a model. read_by: with what else in its request it means something else."""
    about = hashlib.blake2b(f"{model}\0{read_by}".encode(), digest_size=32).digest()
    return hashlib.blake2b(body, digest_size=16, key=about).digest()


def nobody() -> None:
    """Whoever wants to be told that a client has gone, where nobody does."""


@dataclass(frozen=True)
class ReadFor:
    """What a request's body was made for: a version of its model; "": any. fits(card): whether a ModelCard wants the same."""

    version: str
    fits: Callable[[Any], bool]


class AnsweredBy(NamedTuple):
    """Which archive has a request: the name under which it is registered, and its version; "": not known.

    run: what tells it from one that came in its place by the same name: the archive's content, else the server's run.
    """

    model: str = ""
    version: str = ""
    run: str = ""


NO_ARCHIVE = AnsweredBy()


@dataclass
class BackendRequest:
    """A request to a model. target: path and query for the server. deadline: on time.monotonic's clock.

    version: of the model; "": its default. read_for: what its body was made for, where that is not for every version.
    label: the model's name in the metrics. repeatable: whether a second copy of it does
    no harm. sent: how it was sent, where not plainly (hedged, alone, again), which the backend says. leave(): what the backend
    wants to be told when its client has gone. taken_at: when a worker got it, by the event loop's time, where a queue of ours
    knows. pieces: takes the answer as it comes; the answer itself then only says that it is whole. None: it is asked for whole.
    alone: a queue of ours puts nobody else into its batch. sender: whose request it is, a key or an address; "": nobody knows.
    weight, priority: of that sender, where a queue of ours has senders take turns.
    state_of: whose earlier requests its answer depends on, too: what it ends, nobody else's like it need end.
    describes: the host asks what the model is: it belongs to no sequence.
    queued: a queue of ours has looked at it, and knows what its end means for those that come after it.
    record_of: the id of the request that it is a record of; "": of none. one_archive: all records of that are answered by the
    same archive, and not by one that is only tried. answered_by: who has it, or had it last.
    seen: its way, for whoever observes it; None: nobody does. way: the same, once what happens is noted: from the beginning, or
    from when something goes wrong, by `watch`.
    """

    model: str
    deadline: float
    identity: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: str = ""
    read_for: ReadFor | None = None
    label: str = ""
    repeatable: bool = True
    sent: str = ""
    leave: Callable[[], None] = nobody
    taken_at: float = 0.0
    pieces: PieceSink | None = None
    alone: bool = False
    sender: str = ""
    weight: int = 1
    priority: int = 0
    state_of: str = ""
    describes: bool = False
    queued: bool = False
    record_of: str = ""
    one_archive: bool = False
    answered_by: AnsweredBy = NO_ARCHIVE
    way: RequestWay | None = None
    seen: RequestWay | None = None

    @property
    def named(self) -> dict[str, Any]:
        """Its ids, as a line of the log has them: `extra`."""
        way = self.watch()  # what is logged of a request is worth knowing
        trace = {"trace_id": way.trace_word} if way is not None and way.traced else {}
        return {"fields": {"request_id": self.identity, **trace}}

    def watch(self) -> RequestWay | None:
        """Its way: something has happened that whoever observes it wants to know of."""
        if self.way is None:
            self.way = self.seen
        return self.way

    def note(self, what: str) -> None:
        """Something happened to it."""
        if (way := self.watch()) is not None:
            way.note(what)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def write_deadline(self) -> None:
        """Tell the worker the deadline, as the clock is now."""
        self.headers["x-deadline-ms"] = str(int((time.time() + self.left_s) * 1000))

    def dated_anew(self, answer: BackendAnswer) -> bool:
        """Whether a clock was set, so that a worker took it for late and did not run it: it may go again, dated anew."""
        late = answer.status == 504 and answer.from_slot and TOO_LATE in answer.body and self.left_s > CLOCK_S
        if not late or not self.repeatable or self.pieces is not None:
            return False
        self.write_deadline()
        return True

    def to_model(self, name: str) -> Self:
        """The same request to a model of another name, with headers of its own: whoever answers may change them."""
        target = f"{PATH}{name}{self.target[len(PATH) + len(self.model) :]}"
        read_for = self.read_for and replace(self.read_for, version="")
        headers = dict(self.headers)
        return replace(self, model=name, target=target, headers=headers, read_for=read_for, answered_by=NO_ARCHIVE)

    def suits(self, name: str) -> bool:
        """Whether its body is what that model wants, too, as far as is known."""
        return self.read_for is None

    def has_place(self) -> bool:
        """Whether there is room for it, so that nobody else has to give way."""
        return True

    def kept_apart(self) -> bool:
        """Whether there is memory for a copy that outlives its request; until its `release`, where there is."""
        return True

    def release(self) -> None:
        """Nothing of it is needed any more."""

    @cached_property
    def digest(self) -> bytes:
        """What no other body has, nor the same one that means something else; known even once the body is let go."""
        return digest_of(self.model, self.body, f"{self.read_by()}\0{self.state_of}" if self.state_of else self.read_by())

    def read_by(self) -> str:
        """What else says what its body means."""
        return self.target

    def check(self) -> None:
        """Raise Refused where it must not be sent any more: asked before each copy that has had to wait."""

    def convict(self) -> None:
        """Told where it has ended two workers, the second one with nothing else in the batch."""


@dataclass(frozen=True)
class BackendAnswer:
    """The answer to one request. from_worker: it is known that a worker gave it, whatever its headers say."""

    status: int
    headers: RawHeaders
    body: bytes
    from_worker: bool = False

    @cached_property
    def from_slot(self) -> bool:
        """Whether a handler gave this answer. Else the server did, for a worker that is dead or not there."""
        return self.from_worker or any(name.lower() == b"x-batch-slot" for name, _ in self.headers)

    @property
    def overloaded(self) -> bool:
        """Whether it is an Overloaded of a host of ours behind."""
        return not self.from_slot and any(name.lower() == OVERLOADED for name, _ in self.headers)

    @property
    def missing(self) -> bool:
        """Whether there is no such model: a server behind answers that, our own host refuses it."""
        return self.status == MISSING and not self.from_slot

    @property
    def good(self) -> bool:
        """Whether it is the client's answer: a slot's own error is one, too."""
        return self.status < 400 or self.from_slot
