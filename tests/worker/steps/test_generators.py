"""Generators side by side: random histories, and authors whose generators do things wrong."""

from __future__ import annotations

import random
import sys
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pytest

from slotwise.worker.slot_errors import Unprocessable
from slotwise.worker.steps.generators import GeneratorLoop
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import Runner, Stream, StreamEnd, StreamPiece, TurnLimits
from tests.worker.steps.toy_engine import AddingEngine, Counting

pytestmark = pytest.mark.usefixtures("quiet")

HISTORIES = 2_000


class Generated:
    """An author's `stream`, and which of its generators are open. An item: pieces, and what happens after them."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.now = 0.0
        self.yields = 0

    def stream(self, item: tuple[str, int, str]) -> Iterator[str]:
        name, pieces, then = item
        self.open.append(name)
        try:
            for i in range(pieces):
                self.now += 0.01
                self.yields += 1
                yield f"{name}:{i} "
            if then == "raises":
                raise ValueError("secret")
            if then == "refuses":
                raise Unprocessable("no")
            if then == "exits":
                sys.exit()
            if then == "memory":
                raise MemoryError
        finally:
            self.open.remove(name)
            if then == "close fails":
                raise OSError("secret")


STATUS = {"": 200, "raises": 500, "refuses": 422, "exits": 500, "memory": 507, "close fails": 500}


class GeneratorHistory:
    """One random history. problems: what did not hold."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.problems: list[str] = []
        self.limits = TurnLimits(
            turn_s=draw.choice((0.005, 0.03, 1.0)), slow_readers=draw.choice(("park", "end")), parked=draw.randint(0, 2)
        )
        self.most = draw.randint(1, 4)
        items = [(f"s{i}", draw.randint(0, 6), draw.choice(("", "", "", *STATUS))) for i in range(draw.randint(2, 9))]
        self.streams = [Stream(i, item, draw.choice((None, "a"))) for i, item in enumerate(items)]
        self.got: dict[Hashable, list[bytes]] = {stream.id: [] for stream in self.streams}
        self.over: dict[Hashable, int] = {}
        self.held: set[Hashable] = set()
        self.was_held: set[Hashable] = set()
        self.start()

    def start(self) -> None:
        for one in list(getattr(self, "loop", GeneratorLoop(str, 1)).open):  # else the collector closes them, and warns
            self.loop.cancel(one)
        self.author = Generated()
        self.loop = GeneratorLoop(self.author.stream, self.most, self.limits, lambda: self.author.now)
        streams = [stream for stream in self.streams if stream.id not in self.over]
        self.loop.offer([Stream(one.id, one.item, one.owner, sent=tuple(self.got[one.id])) for one in streams])
        for one in list(self.held):
            self.loop.hold(one)

    def run(self) -> list[str]:
        for turn in range(400):
            self.act()
            idle, self.author.yields = self.author.now, 0
            for event in self.loop.turn():
                self.take(event)
            if self.author.now - idle > self.limits.turn_s + 0.02:
                self.problems.append("a turn takes too long")
            if len(self.author.open) > self.most + self.limits.parked:
                self.problems.append(f"{self.author.open} are open, not {self.most} and {self.limits.parked} parked")
            if self.author.yields > self.most:
                self.problems.append(f"a turn takes pieces of {self.author.yields}, not of {self.most}")
            if len(self.over) == len(self.streams):
                break
            if turn > 200:
                for one in list(self.held):
                    self.held.discard(one)
                    self.loop.go_on(one)
        if len(self.over) < len(self.streams) or self.author.open or self.loop.open:
            self.problems.append(f"open: {self.loop.open}, {self.author.open}")
        return self.problems

    def act(self) -> None:
        draw, one = self.random, self.random.choice(self.streams)
        if one.id in self.over:
            return
        what = draw.choices(("nothing", "cancel", "hold", "go on", "die"), (80, 3, 6, 10, 1))[0]
        if what == "cancel":
            self.over[one.id] = 0
            self.loop.cancel(one.id)
            self.held.discard(one.id)
        elif what == "hold":
            self.held.add(one.id)
            self.was_held.add(one.id)
            self.loop.hold(one.id)
        elif what == "go on":
            self.held.discard(one.id)
            self.loop.go_on(one.id)
        elif what == "die":
            self.start()

    def take(self, event: object) -> None:
        assert isinstance(event, StreamPiece | StreamEnd)
        name, pieces, then = self.streams[int(str(event.id))].item  # type: ignore[misc]
        whole = [f"{name}:{i} ".encode() for i in range(pieces)]
        if event.id in self.over:
            self.problems.append(f"{event} after its end")
        elif isinstance(event, StreamPiece):
            self.got[event.id].append(event.data)
            if self.got[event.id] != whole[: len(self.got[event.id])]:
                self.problems.append(f"{self.got[event.id]}, not {whole}")
        else:
            self.held.discard(event.id)
            status = self.over[event.id] = 200 if event.error is None else event.error.status
            if status == 408 and event.id in self.was_held:
                return
            if status != STATUS[then] or self.got[event.id] != whole:
                self.problems.append(f"{name} ends with {status} after {self.got[event.id]}: {then}")


def test_in_every_history_each_stream_is_what_its_generator_gives() -> None:
    wrong = {seed: found for seed in range(HISTORIES) if (found := GeneratorHistory(seed).run())}
    assert not wrong


@pytest.mark.parametrize("given", [None, "text", b"bytes", {"a": 1}, 7])
def test_what_is_no_pieces(given: object) -> None:
    loop = GeneratorLoop(lambda item: given, 2)
    loop.offer([Stream(1, None)])
    (event,) = loop.turn()
    assert isinstance(event, StreamEnd)
    assert event.error is not None
    assert event.error.status == 500


def test_pieces_are_text_bytes_or_json() -> None:
    loop = GeneratorLoop(lambda item: iter(["é", b"\xff", {"a": [1]}, 2.5]), 1)
    loop.offer([Stream(1, None)])
    sent = [event for _ in range(5) for event in loop.turn()]
    assert sent == [StreamPiece(1, data) for data in ("é".encode(), b"\xff", b'{"a": [1]}', b"2.5")] + [StreamEnd(1)]


def test_a_generator_that_does_not_close_harms_nobody() -> None:
    def stubborn(item: object) -> Iterator[str]:
        while True:
            try:
                yield "a"
            except GeneratorExit:
                yield "I stay"

    loop = GeneratorLoop(stubborn, 2)
    loop.offer([Stream(1, None), Stream(2, None)])
    assert len(loop.turn()) == 2
    loop.cancel(1)
    assert [event.id for event in loop.turn()] == [2]
    loop.cancel(2)
    assert not loop.busy


def given(stream: Any, *items: Any) -> list[list[bytes]]:
    """What streams of these items give that are offered together."""
    loop = GeneratorLoop(stream, len(items))
    loop.offer([Stream(i, item) for i, item in enumerate(items)])
    pieces: list[list[bytes]] = [[] for _ in items]
    while loop.busy:
        for event in loop.turn():
            if isinstance(event, StreamPiece):
                pieces[int(str(event.id))].append(event.data)
            else:
                assert event.error is None
    return pieces


def seeds_random(item: int) -> Iterator[str]:
    random.seed(7)  # the same for all
    for _ in range(2 + item):
        yield str(random.random())


def seeds_numpy(item: int) -> Iterator[str]:
    np.random.seed(7)
    for _ in range(2 + item):
        yield str(np.random.random())


def errstate(item: int) -> Iterator[str]:
    with np.errstate(divide="raise" if item % 2 else "ignore"):
        for _ in range(2 + item):
            try:
                yield str(np.float64(1) / np.float64(0))
            except FloatingPointError:
                yield "raised"


def seeds_torch(item: int) -> Iterator[str]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    for _ in range(2 + item):
        yield str(float(torch.rand(())))


def autocast(item: int) -> Iterator[str]:
    torch = pytest.importorskip("torch")
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(item % 2)):
        for _ in range(2 + item):
            yield str((torch.full((1, 1), 0.3) @ torch.full((1, 1), 0.7)).float().item())


def in_inference_mode(item: int) -> Iterator[str]:
    torch = pytest.importorskip("torch")
    layer, x = torch.nn.Linear(1, 1), torch.ones(1, 1)
    torch.nn.init.constant_(layer.weight, 0.5), torch.nn.init.zeros_(layer.bias)
    with torch.inference_mode():
        for _ in range(2 + item):
            x = layer(x)
            yield str(x.numpy())


@pytest.fixture(autouse=True)
def _usual_type() -> Iterator[None]:
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_default_dtype(sys.modules["torch"].float32)


def default_type(item: int) -> Iterator[str]:
    """What every second one sets is there already."""
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64 if item % 2 else torch.float32)
    for _ in range(2 + item):
        yield str(torch.zeros(1).dtype)


def without_gradients(item: int) -> Iterator[str]:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        for _ in range(2 + item):
            yield str((torch.ones(1, requires_grad=True) * 2).numpy())


@pytest.mark.parametrize(
    "stream", [seeds_random, seeds_numpy, errstate, seeds_torch, autocast, default_type, in_inference_mode, without_gradients]
)
def test_what_all_have_in_common_is_each_generators_own(stream: Any) -> None:
    items = (0, 3, 1, 2)
    list(stream(3))  # sets the same seed
    assert given(stream, *items) == [given(stream, item)[0] for item in items]


def test_who_is_cancelled_takes_no_mode_from_another() -> None:
    torch = pytest.importorskip("torch")
    loop = GeneratorLoop(autocast, 2)
    loop.offer([Stream(0, 2), Stream(1, 3)])
    loop.turn()
    loop.cancel(0)  # its generator is closed, and leaves its block
    pieces = [event.data for _ in range(9) for event in loop.turn() if isinstance(event, StreamPiece)]
    assert len(set(pieces)) == 1
    assert not torch.is_autocast_enabled("cpu")


def test_who_has_set_a_seed_and_is_not_read_goes_on_as_others_wait() -> None:
    loop = GeneratorLoop(seeds_random, 2)
    loop.offer([Stream(0, 1), Stream(1, 1)])
    loop.turn()
    loop.hold(0)
    ended = [event.id for _ in range(9) for event in loop.turn() if isinstance(event, StreamEnd)]
    assert ended == [0, 1]


def test_both_are_runners() -> None:
    runners: list[Runner] = [GeneratorLoop(lambda item: [], 1), StepLoop(AddingEngine(), Counting())]
    assert not any(runner.busy or runner.dead for runner in runners)


def test_where_the_example_fails_too_every_stream_is_to_go_on_elsewhere() -> None:
    broken = list[str]()

    def stream(item: str) -> Iterator[str]:
        if item == "poison":
            broken.append(item)  # as an assertion in a kernel of the GPU: every later call fails
        if broken:
            raise RuntimeError("no device")
        if item == "bad":
            raise RuntimeError("this one alone")
        yield item
        yield item

    loop = GeneratorLoop(stream, 4, example=lambda: "example")
    loop.offer([Stream(0, "good"), Stream(1, "bad")])
    ended = [event for event in loop.turn() if isinstance(event, StreamEnd)]
    assert [(end.id, end.error and end.error.status) for end in ended] == [(1, 500)]
    assert not loop.dead
    loop.offer([Stream(2, "poison"), Stream(3, "later")])
    assert not any(isinstance(event, StreamEnd) for event in (*loop.turn(), *loop.turn()))
    assert loop.dead
    assert {0, 2, 3} >= set(loop.open) >= {2, 3}
    for one in list(loop.open):
        loop.cancel(one)
