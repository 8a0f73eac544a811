"""What an author of a model that decodes in steps writes: an engine with `prefill`, `step` and `free`, and `advance`.

    prefill(slot, item) -> output              read the item into the slot's cache
    step([(slot, token, position)]) -> outputs write each token at its position, one output a row
    free(slot)                                 nobody needs the slot's cache any more
    advance(state, output) -> Next | End       which token comes next, and which piece of the answer is ready

The loop (step_loop.py) does the rest. `advance` is called once for each output of a stream, in order. A step may be run again
at the same slot and position, with the same token, and must then give the same output.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from slotwise.worker.slot_errors import SlotError


class StepRow(NamedTuple):
    """One row of a step. position: how many tokens of the answer came before this one; 0 is the first after the prefill."""

    slot: int
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class Next:
    """The stream goes on with this token. piece: what can be sent now: text, bytes, or anything that JSON can say; or None."""

    token: int
    piece: object = None


@dataclass(frozen=True, slots=True)
class End:
    """The answer is whole. piece: its last one, or None."""

    piece: object = None


@dataclass(eq=False)
class StepState:
    """One stream as `advance` sees it.

    item: what was decoded. random: seeded by the request; draw from nothing else. tokens: those so far, the prompt's not among
    them; a copy. own: the author's own, None at first.
    """

    item: Any
    random: random.Random
    tokens: list[int] = field(default_factory=list)
    own: Any = None


class StepEngine:
    """The base class of step engines. Override `prefill`, `step` and `free`, and `tokens` where items differ in length.

    slots: how many streams have a cache at once. Theirs are the slots 0 to slots - 1. The slot with the number `slots` is a
    scratch slot: it fills a step up, and shows whether the engine still runs, with the token 0 at position 0. It may stand in
    several rows of a step, and nobody reads what they give.
    longest_item: tokens of the longest item that is taken. longest_answer: tokens of the longest answer that a slot holds.
    in_parts: whether items are read in parts, by `prefill_part`. together: whether several are read at once, by `prefill_all`.
    """

    slots: int = 1
    longest_item: int = 1 << 30
    longest_answer: int = 1 << 30
    in_parts: bool = False
    together: bool = False

    def tokens(self, item: Any) -> int:
        """How many tokens `prefill` will read, for the budget of a turn. Must be quick."""
        return 1

    def prefill(self, slot: int, item: Any) -> Any:
        """Read an item into a slot, whatever was in it before. Returns the output after its last token: [...]."""
        raise NotImplementedError

    def prefill_part(self, slot: int, item: Any, start: int, stop: int) -> Any:
        """Read the item's tokens from `start` up to `stop`; those before are in the slot. Returns the output after the last."""
        raise NotImplementedError

    def prefill_all(self, slots: Sequence[int], items: Sequence[Any]) -> Any:
        """Read b items, each into its slot, whatever was in it before: b outputs, as of a step, each as `prefill` gives it.

        May raise anything: the items that make it fail are found by reading fewer at once.
        """
        raise NotImplementedError

    def step(self, rows: Sequence[StepRow]) -> Any:
        """Write b tokens, each at its slot's position (what the slot holds at or after it is void); b outputs, one a row.

        May raise anything: the rows that make it fail are found by running it again on fewer. Outputs are an array [b, ...], or
        a list of b things.
        """
        raise NotImplementedError

    def free(self, slot: int) -> None:
        """Let go of what the slot holds. It may hold nothing."""

    def release(self) -> None:
        """Free what a failed call holds."""


class StepAuthor(Protocol):
    """The part of a handler that decides. It is the same for all streams: what belongs to one is in its state."""

    def advance(self, state: StepState, output: Any) -> Next | End | SlotError:
        """Choose the next token from an output of the model, or end the stream. May raise a SlotError."""

    def example(self) -> Any | None:
        """One valid item, to warm up and to tell a bad input from a dead engine; None where there is none."""

    def others(self) -> Iterable[Any]:
        """Further items, to prove with that slots keep apart, and that items may be read together."""
