"""What a host offers to a runner of streams, and what it gets back turn by turn.

    offer(streams) -> turn() -> pieces and ends, until each stream has ended or was cancelled

A runner belongs to one thread: nothing may be called while a turn runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from slotwise.worker.answer import Refusal
from slotwise.worker.slot_errors import SlotError


@dataclass(frozen=True)
class Stream:
    """One item whose answer comes in pieces.

    id: nobody else's while the stream is open. item: what the handler decoded. owner: the request that it belongs to, where a
    request has several items; None means that it is a request of its own. seed: of all that is drawn for it. deadline: a time
    on the runner's clock, or None. sent: the pieces that another worker had sent before it died: they are not sent again.
    """

    id: Hashable
    item: object
    owner: Hashable = None
    seed: int = 0
    deadline: float | None = None
    sent: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The next piece of a stream: text in UTF-8, or JSON."""

    id: Hashable
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """A stream has ended. error: None where its answer is whole."""

    id: Hashable
    error: Refusal | None = None


StreamEvent = StreamPiece | StreamEnd


class SlowReader(SlotError):
    """The client did not read its stream."""

    code = 408


@dataclass(frozen=True)
class TurnLimits:
    """What one turn may cost, and what becomes of readers that are slow.

    turn_s: after that no further call of the model is started in a turn; each kind of call may be made once. prefill_tokens:
    how many tokens a turn prefills at most; an item that has more, of an engine that prefills only whole items, is the only one
    of its turn, and the next turns make up for it. gather_turns: of an engine that reads several items at once: beside streams
    that are decoded, so many turns after a call that has read all for whom there was room the next one is made, so that it has
    several. slow_readers: whether a stream that nobody reads is parked, or ends.
    parked: how many parked streams keep what they have in memory. parked_s: how long a stream may be parked before it ends.
    """

    turn_s: float = 1.0
    prefill_tokens: int = 1024
    gather_turns: int = 4
    slow_readers: Literal["park", "end"] = "park"
    parked: int = 4
    parked_s: float = 60.0

    def __post_init__(self) -> None:
        if (
            self.turn_s <= 0
            or self.prefill_tokens < 1
            or self.gather_turns < 0
            or self.parked < 0
            or self.slow_readers not in ("park", "end")
        ):
            raise ValueError(f"these are no limits of a turn: {self}")


class Runner(Protocol):
    """What a host drives. dead: no turn will do anything any more: every open stream is to be offered to another worker."""

    dead: bool

    def offer(self, streams: Sequence[Stream]) -> None:
        """Take these streams, in the order in which they came. Raises ValueError where an id is open already."""

    def cancel(self, stream_id: Hashable) -> None:
        """The client has gone: the stream gives back its slot now, and nothing of it comes any more. Any id may be named."""

    def hold(self, stream_id: Hashable) -> None:
        """The client does not read: the stream is parked, or ends."""

    def go_on(self, stream_id: Hashable) -> None:
        """The client reads again."""

    def turn(self) -> list[StreamEvent]:
        """One turn: at most one step of each stream. Returns the pieces and ends, those of one stream in order."""

    @property
    def busy(self) -> bool:
        """Whether a turn would do anything now."""
