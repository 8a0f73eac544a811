"""Run generators of pieces side by side: the simple way to stream, for any model.

    def stream(item): yield piece, piece, ...

A turn takes one piece of each generator. Who had no turn because the time was over comes first in the next one.

A generator that has set at a `yield` what all of them have in common (a seed, torch's autocast, something on the handler) goes
on alone until its end: between its pieces others would set it otherwise, or compute with what it has set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from slotwise.worker.answer import Refusal
from slotwise.worker.isolation import is_out_of_memory
from slotwise.worker.ownership import owned
from slotwise.worker.slot_errors import ModelFault, OutOfMemory, SlotError
from slotwise.worker.steps.common_state import common_state, modes, moved_on, set_between
from slotwise.worker.steps.open_streams import OpenStream, StreamRunner, first_in_turn, longest_held
from slotwise.worker.steps.outlet import Outlet
from slotwise.worker.steps.streams import SlowReader, Stream, TurnLimits

logger = logging.getLogger(__name__)

OVER = object()
LookedAt = Callable[[str], AbstractContextManager[tuple[Callable[[], set[str]], object]]]


@dataclass(eq=False)
class GeneratedStream(OpenStream):
    """A stream that a generator gives. pieces: None until it is started. begun: whether it has been asked for one.

    over: whether it gives no more. context: its context variables, numpy's errstate among them. modes: in which torch
    computes for it.
    """

    pieces: Iterator[object] | None = None
    begun: bool = False
    over: bool = False
    context: Context = field(default_factory=copy_context)
    modes: Sequence[object] | None = None


class GeneratorLoop(StreamRunner[GeneratedStream]):
    """Runs an author's `stream(item)`, at most `most` in a turn.

    A generator cannot be asked a second time, so whatever it raises ends its own stream, out of memory too. Where the author's
    `example` gives no first piece any more either, every stream is to go on in another worker. A parked one keeps
    what it has, and another one may start in its place; where it goes on, all take turns. Where more than `limits.parked` are
    parked, the one that was parked first ends.

    look(name): within, a call runs; then it tells the names of what that has changed on the handler. It may look at some calls
    only, so once two streams have changed the same, all run one after the other.
    """

    def __init__(
        self,
        stream: Callable[[object], object],
        most: int,
        limits: TurnLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        example: Callable[[], object] = lambda: None,
        look: LookedAt = lambda name: nullcontext((set, None)),
    ) -> None:
        super().__init__(limits or TurnLimits(), clock)
        self.stream, self.most, self.example, self.look = stream, most, example, look
        self.sole: GeneratedStream | None = None  # no other one has a turn until it has ended
        self.set_by: dict[str, Hashable] = {}  # by name, which stream was the first to set it
        self.one_by_one = False
        self.leaving: tuple[GeneratedStream, float] | None = None  # who is run to its end for nobody, and until when
        self.state: dict[str, object] = {}  # what all have in common, after the last piece

    def _opened(self, stream: Stream, arrival: int) -> GeneratedStream:
        return GeneratedStream(stream, arrival, Outlet(stream.sent))

    @property
    def busy(self) -> bool:
        return super().busy or (self.leaving is not None and not self.dead)

    def _take_turn(self, stop_at: float) -> None:
        if self.leaving is not None:
            self._leave(*self.leaving, stop_at)
            return
        self._start()
        running = sorted(self._running(), key=lambda one: (one.last_turn, one.arrival))
        if self.one_by_one and self.sole is None:
            self.sole = min(running, key=lambda one: one.arrival, default=None)
        if self.sole is not None:  # also where nobody reads it: others wait for its end
            running = [self.sole]
        for place, one in enumerate(running[: self.most]):
            if self.dead or (place and self.clock() >= stop_at) or self.sole not in (None, one):
                return
            one.last_turn = self.turns
            self._next(one)

    def _leave(self, one: GeneratedStream, until: float, stop_at: float) -> None:
        """Run a generator on whose pieces nobody waits for: what it keeps where others see it, it may clear only at its end."""
        assert one.pieces is not None
        while not one.over and self.clock() < min(until, stop_at):
            try:
                with modes(one.modes):
                    one.over = one.context.run(next, one.pieces, OVER) is OVER
            except KeyboardInterrupt:
                raise
            except BaseException:
                one.over = True
        if one.over or self.clock() >= until:
            self.leaving, one.over = None, True
            self._left(one)

    def _running(self) -> list[GeneratedStream]:
        return [one for one in self.open.values() if one.pieces is not None and one.held_at is None]

    def _start(self) -> None:
        """Start as many as there are places for."""
        running, most = self._running(), 1 if self.one_by_one else self.most
        if self.sole is not None:
            return
        waiting = [one for one in self.open.values() if one.pieces is None and one.held_at is None]
        while len(running) < most and (one := first_in_turn(waiting, running)) is not None:
            waiting.remove(one)
            one.pieces = _pieces(self.stream, one.stream.item)
            running.append(one)

    def _next(self, one: GeneratedStream) -> None:
        """Take the next piece of a generator."""
        assert one.pieces is not None
        before, call, one.begun = self.state or moved_on(), "piece" if one.begun else "first piece", True
        try:
            with self.look(call) as (changed, _), modes(one.modes) as now:
                piece = one.context.run(next, one.pieces, OVER)
                names, one.modes = changed(), now()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's sys.exit() is no reason to end the worker
            one.over = True
            refused = _refused(one, error)
            if isinstance(error, SlotError) or is_out_of_memory(error) or self._alive():
                self._end(one, refused)
            else:
                self.dead = True
        else:
            one.over = piece is OVER
            if one.over:
                self._end(one)
                return
            self.state = common_state()
            if names := names | set_between(before, self.state):
                self._go_on_alone(one, names)
            self._put(one, piece)

    def _go_on_alone(self, one: GeneratedStream, names: set[str]) -> None:
        """It has set these, which others have, too: it has all turns until its end."""
        if names - self.set_by.keys():
            logger.warning(
                "streams that have set %s at a piece run alone: keep it in variables of `stream`, or set it for each piece",
                ", ".join(sorted(names)),
            )
        self.sole = one
        first = {name: self.set_by.setdefault(name, one.stream.id) for name in names}
        self.one_by_one |= any(first[name] != one.stream.id for name in names - self.state.keys())

    def _alive(self) -> bool:
        """Whether the author's example still gives a first piece; True where there is none."""
        try:
            if (item := self.example()) is not None:
                pieces = _pieces(self.stream, owned(item))
                next(pieces, None)
                pieces.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not is_out_of_memory(error):
                logger.exception("the handler's stream fails on the example, too")
                return False
        return True

    def _left(self, one: GeneratedStream) -> None:
        if one is self.sole and self.one_by_one and one.begun and not one.over and one.pieces is not None:
            self.leaving = one, self.clock() + self.limits.parked_s
            return
        pieces, one.pieces = one.pieces, None
        try:
            close = getattr(pieces, "close", None)
            if callable(close):
                with modes(one.modes):
                    one.context.run(close)
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.warning("stream %s: its generator could not be closed", one.stream.id, exc_info=True)
        if one is self.sole:
            self.sole, self.state = None, {}

    def _parked(self) -> None:
        parked = [one for one in self.open.values() if one.held_at is not None and one.pieces is not None]
        if len(parked) > self.limits.parked and (first := longest_held(parked)) is not None:
            self._end(first, SlowReader("the stream was not read, and its place was needed"))


def _pieces(stream: Callable[[object], object], item: object) -> Generator[object]:
    """What the author's hook gives, and whatever it does wrong at the first piece."""
    made = stream(item)
    if not isinstance(made, Iterator | list | tuple):
        raise ModelFault(f"the handler's stream gave a {type(made).__name__}, not pieces")
    yield from made


def _refused(one: GeneratedStream, error: BaseException) -> Refusal:
    if isinstance(error, SlotError):
        return Refusal.of(error)
    logger.warning("stream %s: its generator failed", one.stream.id, exc_info=error)
    if is_out_of_memory(error):
        return Refusal.of(OutOfMemory("there was not enough memory for this stream"))
    return Refusal.of(ModelFault("the model failed on this input"))
