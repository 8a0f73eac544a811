"""The base class of handlers whose answers come piece by piece.

    class Counting(StreamHandler):
        def load(self, model_dir, settings): ...
        def decode(self, body, headers): return [int(body)]
        def stream(self, item): yield from map(str, range(item))

    handle = Counting.entry_point()

Or `load` returns a StepEngine, and `advance` takes the place of `stream`: then requests join and leave between two steps. Where
a host knows no streams, or a client asks for none, the same handler answers whole: `encode` makes the answer of the pieces.

A `load` that sets `self.streams = False` has an engine for closed batches: `collate` and `predict` are then BatchHandler's, and
a stream is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from slotwise.worker.answer import Refusal
from slotwise.worker.engines import samples
from slotwise.worker.familiar.handed_on import look_at_what_is_kept, seen_by_others
from slotwise.worker.familiar.looking import Looking
from slotwise.worker.familiar.process_wide import FILES, SEED, TOGETHER
from slotwise.worker.familiar.uses import ANYTHING, FIRST, LAST
from slotwise.worker.handler import BatchHandler
from slotwise.worker.request import Request
from slotwise.worker.slot_errors import SlotError
from slotwise.worker.steps.generators import GeneratorLoop
from slotwise.worker.steps.slot_table import SlotTable
from slotwise.worker.steps.step_engine import End, Next, StepEngine, StepState
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Runner, Stream, StreamEvent, StreamPiece, TurnLimits
from slotwise.worker.streaming.piece_objects import Piece, each_as_object, outcome_as_object, parsed, too_many_bytes, whole_text

logger = logging.getLogger(__name__)


class StreamHandler(BatchHandler):
    """Override `load`, `decode`, and `stream` or `advance`. A piece is a text, or an object that JSON can say.

    streams: whether it does; `load` may say no. at_once: how many generators take turns; None means the batch_size of the
    registration. A step engine has its own `slots`. limits: of a turn.
    """

    streams: bool = True
    at_once: ClassVar[int | None] = None
    limits: ClassVar[TurnLimits] = TurnLimits()

    def stream(self, item: Any) -> Any:
        """The pieces of one item's answer, as a generator."""
        raise NotImplementedError

    def advance(self, state: StepState, output: Any) -> Next | End | SlotError:
        """Choose the next token from an output of the step engine, or end the stream. May raise a SlotError."""
        raise NotImplementedError

    def encode(self, output: Any, item: Any) -> Any:
        """Turn all pieces of an answer into one result: a text where each is a text, else the list of them.

        output: the pieces as objects, in order; a text is {"text": ...}.
        """
        if not self.streams:
            return super().encode(output, item)
        text = whole_text(output)
        return output if text is None else text

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """As BatchHandler's; one text is sent as a text."""
        body, content_type = super().respond(request, results)
        return body, "text/plain; charset=utf-8" if isinstance(body, str) else content_type

    # Not to be overridden --------------------------------------------------------------------------------------------

    @cached_property
    def runner(self) -> Runner:
        """What runs its streams. Raises what its engine raises on the example."""
        if isinstance(self.engine, StepEngine):
            alone = self._keeps("advance")  # then none is parked: it would find there what the next one has left
            limits = replace(self.limits, slow_readers="end") if alone else self.limits
            steps = StepLoop.start(self.engine, _Author(self), limits)
            if alone:
                steps.slots = SlotTable(1)
            return steps
        looking = Looking(self, [kind for kind in type(self).__mro__ if kind not in StreamHandler.__mro__])
        loop = GeneratorLoop(
            lambda item: each_as_object(self.stream(item)), self.slots, self.limits, example=self.example, look=looking.at
        )
        loop.one_by_one = self._keeps("stream", seen={ANYTHING, SEED})  # which the loop sees itself
        return loop

    def _keeps(self, method: str, seen: Set[str] = frozenset()) -> bool:
        """Whether this method keeps something of a stream where others see it, but for these names; the log says what then."""
        names = seen_by_others(self, StreamHandler, method) - seen
        if names:
            where = "state.own" if method == "advance" else "its variables"
            what = "streams run one after the other: `%s` changes %s, which the others see: keep it in %s"
            logger.warning(what, method, ", ".join(sorted(names)), where)
        return bool(names)

    def leaves_for_later(self) -> bool:
        """As BatchHandler's. What all streams have together is seen where they run, but for files, which `encode` may read."""
        if not self.streams:
            return look_at_what_is_kept(self, StreamHandler)
        method = "advance" if isinstance(self.engine, StepEngine) else "stream"
        hooks = (*FIRST, method, *LAST)
        return look_at_what_is_kept(self, StreamHandler, hooks, {ANYTHING, *TOGETHER} - {FILES})

    @property
    def slots(self) -> int:
        """How many streams run at once."""
        return self.engine.slots if isinstance(self.engine, StepEngine) else self.at_once or self.settings.batch_size

    def collate(self, items: list[Any]) -> Any:
        """The items as they are: each is a stream of its own."""
        return items if self.streams else super().collate(items)

    def predict(self, inputs: Sequence[Any]) -> list[list[Piece] | SlotError]:
        """Run these items' streams to their ends: the pieces of each, or its error.

        Raises RuntimeError where the engine is dead.
        """
        if not self.streams:
            return super().predict(inputs)  # type: ignore[no-any-return]
        until = min(time.monotonic() + self.settings.response_timeout_s / 2, self.predict_until)
        runner, wholes = self.runner, [_Whole(self.settings.max_response_bytes) for _ in inputs]
        try:
            runner.offer([Stream(i, item, deadline=until) for i, item in enumerate(inputs)])
            while not all(one.ended for one in wholes):
                for event in runner.turn():
                    one = wholes[int(str(event.id))]
                    if not one.ended and one.takes(event):
                        runner.cancel(event.id)
                if runner.dead:
                    raise RuntimeError("the engine is dead")
        finally:
            for i in range(len(inputs)):
                runner.cancel(i)
        return [one.error.error() if one.error else parsed(one.pieces) for one in wholes]


@dataclass
class _Whole:
    """What the stream of one item gave so far. most: bytes that its pieces may have."""

    most: int
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    ended: bool = False
    error: Refusal | None = None

    def takes(self, event: StreamEvent) -> bool:
        """Take a piece or the end. Returns whether it has ended."""
        if isinstance(event, StreamPiece):
            self.pieces.append(event.data)
            self.size += len(event.data)
            if self.size > self.most:
                self.ended, self.error = True, Refusal.of(too_many_bytes(self.most))
        else:
            self.ended, self.error = True, event.error
        return self.ended


class _Author:
    """The part of a handler that a step loop asks."""

    def __init__(self, handler: StreamHandler) -> None:
        self.handler = handler

    def advance(self, state: StepState, output: Any) -> Next | End | SlotError:
        return outcome_as_object(self.handler.advance(state, output))

    def example(self) -> Any | None:
        return self.handler.example()

    def others(self) -> Iterator[Any]:
        """The archive's examples, and the example as noise, where it is made of numbers, or shorter, where it is of tokens."""
        yield from samples.examples(self.handler.model_dir, self.handler)
        yield samples.noise(self.handler.example(), 1)
        yield samples.shorter(self.handler.example())
