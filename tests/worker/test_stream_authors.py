"""Streams hold when their author errs: whatever a hook does costs only the requests that it was called for.

As tests/worker/test_authors.py, for a worker that streams: a hook misbehaves for marked requests only (their number is WRONG).
Everybody else's pieces and whole answers are what they get alone, and no turn raises.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import Headers, Request, Settings
from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget, Cost
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.steps.step_engine import End, Next, StepState
from slotwise.worker.streaming.stream_desk import OpenRequest, StreamDesk, alone
from slotwise.worker.streaming.stream_handler import StreamHandler
from tests.worker.steps.toy_engine import AddingEngine, item
from tests.worker.test_authors import ACTS

WRONG = 13
MOST_TURNS = 500

Asked = list[tuple[int, bool]]  # the number in its body, and whether it wants pieces


class Author(StreamHandler):
    """A body [n] gives n % 5 + 1 texts by a generator, each with an object behind it. One hook misbehaves for the marked."""

    hook, act = "", staticmethod(lambda right: right)

    def does(self, hook: str, marked: bool, right: Any) -> Any:
        return self.act(right) if hook == self.hook and marked else right

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def example(self) -> Any:
        return 1

    def cost(self, body: bytes, headers: Headers) -> Any:
        return self.does("cost", body == b"[13]", Cost(0.1, 100))

    def read(self, request: Request) -> Any:
        return self.does("read", request.body == b"[13]", super().read(request))

    def decode(self, body: bytes, headers: Headers) -> Any:
        return self.does("decode", body == b"[13]", json.loads(body))

    def stream(self, item: Any) -> Any:
        return self.does("stream", item == WRONG, self.pieces(item))

    def pieces(self, item: Any) -> Any:
        for i in range(item % 5 + 1):
            yield self.does("piece", item == WRONG and i == 1, f"{item}-{i} ")
            yield {"value": self.does("value", item == WRONG and i == 1, i)}

    def encode(self, output: Any, item: Any) -> Any:
        return self.does("encode", item == WRONG, super().encode(output, item))

    def respond(self, request: Request, results: list[Any]) -> Any:
        return self.does("respond", request.body == b"[13]", super().respond(request, results))


class Wrongly(AddingEngine):
    """An engine that misbehaves where a slot holds what is marked."""

    author: StepAuthor

    def __init__(self) -> None:
        super().__init__(slots=3)
        self.marked: set[int] = set()

    def tokens(self, item: Any) -> Any:
        return self.author.does("tokens", WRONG in item["text"], super().tokens(item))

    def prefill(self, slot: int, item: Any) -> Any:
        self.marked = self.marked | {slot} if WRONG in item["text"] else self.marked - {slot}
        return self.author.does("prefill", slot in self.marked, super().prefill(slot, item))

    def step(self, rows: Any) -> Any:
        marked = any(row.slot in self.marked for row in rows)
        return self.author.does("step", marked, super().step(rows))

    def free(self, slot: int) -> None:
        marked = slot in self.marked
        super().free(slot)
        self.author.does("free", marked, None)


class StepAuthor(Author):
    """The same by an engine that is asked step by step."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        engine = Wrongly()
        engine.author = self
        return engine

    def example(self) -> Any:
        return item(1)

    def decode(self, body: bytes, headers: Headers) -> Any:
        return self.does("decode", body == b"[13]", [item(n, tokens=n % 5 + 1) for n in json.loads(body)])

    def advance(self, state: StepState, output: Any) -> Any:
        piece = str(int(output[0])) + " "
        right = End(piece) if len(state.tokens) + 1 == state.item["tokens"] else Next(int(output[0]) % 7, piece)
        return self.does("advance", WRONG in state.item["text"], right)

    def encode(self, output: Any, item: Any) -> Any:
        return self.does("encode", WRONG in item["text"], StreamHandler.encode(self, output, item))


HOOKS = {
    Author: ("cost", "read", "decode", "stream", "piece", "value", "encode", "respond"),
    StepAuthor: ("cost", "read", "decode", "tokens", "prefill", "step", "free", "advance", "encode", "respond"),
}


def answered(kind: type[Author], hook: str, act: str, asked: Asked) -> list[list[Frame]]:
    """All that a worker says to each of these requests, which are there at once."""
    handler = kind()
    pipeline = Pipeline.start(handler, Path("."), Settings(batch_size=4))
    handler.hook, handler.act = hook, ACTS[act]  # type: ignore[assignment]
    desk = StreamDesk(pipeline, handler.runner)
    batch = Batch([Request(f"[{number}]".encode(), Headers({"x-seed": "1"}), str(i)) for i, (number, _) in enumerate(asked)])
    pipeline.decode(batch, Budget(batch.n, 60, 1000))
    said: list[list[Frame]] = [[] for _ in asked]
    for i, (_, pieces) in enumerate(asked):
        said[i] += desk.take(OpenRequest(i, alone(batch, i), pieces))
    for _ in range(MOST_TURNS):
        if not desk.busy:
            break
        for frame in desk.turn():
            said[frame.id].append(frame)
    assert not desk.open
    assert not pipeline.handler.runner.dead  # type: ignore[attr-defined]
    return said


def shown(said: list[Frame]) -> tuple[int, list[bytes]]:
    """The status and the bodies; who is said nothing of it has been answered whole."""
    *pieces, last = said
    assert all(frame.kind == frames.PIECE and frame.flags == frames.MORE for frame in pieces)
    if last.kind == frames.ANSWER:
        return frames.answer_about(last.text)[0], [frame.body for frame in said]
    assert (last.kind, last.flags, last.body) == (frames.PIECE, 0, b"")
    return 200, [frame.body for frame in pieces]


everybody = st.lists(st.tuples(st.sampled_from([WRONG, 20, 21, 22, 23, 24]), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks]), st.sampled_from(sorted(ACTS)), everybody
)
def test_whatever_a_hook_does_everybody_elses_stream_is_what_it_is_alone(
    which: tuple[type[Author], str], act: str, asked: Asked
) -> None:
    kind, hook = which
    said = answered(kind, hook, act, asked)
    for one, frames_ in zip(asked, said, strict=True):
        status, bodies = shown(frames_)
        assert 200 <= status <= 599
        assert b"secret" not in b"".join(bodies)
        if one[0] != WRONG:
            assert (status, bodies) == shown(answered(kind, "", act, [one])[0])


@pytest.mark.parametrize(("kind", "hook"), [(kind, hook) for kind, hooks in HOOKS.items() for hook in hooks])
def test_every_hook_of_a_stream_in_every_way(kind: type[Author], hook: str) -> None:
    asked = [(21, True), (WRONG, True), (WRONG, False), (22, False)]
    right = [shown(one) for one in answered(kind, "", "slow", asked)]
    for act in sorted(ACTS):
        said = [shown(one) for one in answered(kind, hook, act, asked)]
        assert [said[0], said[3]] == [right[0], right[3]], act
