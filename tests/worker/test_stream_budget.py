"""Whole answers of a handler that streams keep to the time of their batch, and to the size that is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker import Headers, Pipeline, Request, Settings
from slotwise.worker.steps.generators import GeneratorLoop
from slotwise.worker.streaming import stream_handler
from slotwise.worker.streaming.piece_objects import each_as_object
from slotwise.worker.streaming.stream_handler import StreamHandler
from tests.worker.toy import Clock


class Words(StreamHandler):
    """A body is a JSON list; each number in it is an item and gives so many words."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return list(json.loads(body))

    def stream(self, item: int) -> Iterator[str]:
        yield from (f"word{i} " for i in range(item))


class Slow(Words):
    """Every piece takes 0.9 seconds of a clock that only it moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = Clock(patch)
        patch.setattr(stream_handler, "time", SimpleNamespace(monotonic=self.clock))

    def load(self, model_dir: Path, settings: Settings) -> Any:
        vars(self)["runner"] = GeneratorLoop(lambda item: each_as_object(self.stream(item)), 2, clock=self.clock)

    def stream(self, item: int) -> Iterator[str]:
        for piece in super().stream(item):
            self.clock.now += 0.9
            yield piece


class Large(Words):
    """Every piece has 10 KB. given: how many."""

    given = 0

    def stream(self, item: int) -> Iterator[str]:
        for _ in range(item):
            self.given += 1
            yield 10_000 * "x"


def answered(pipeline: Pipeline, *bodies: list[int]) -> list[Any]:
    return pipeline.answer([Request(json.dumps(body).encode(), Headers(), f"id-{i}") for i, body in enumerate(bodies)])


@pytest.mark.parametrize("rest", [[], [1]])
def test_a_group_that_starts_late_leaves_time_to_answer_those_before_it(
    rest: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.start(Slow(monkeypatch), Path("."), Settings(batch_size=2, response_timeout_s=8))
    stranger, own = answered(pipeline, [1], [3, 100_000, *rest])
    assert (stranger.status, stranger.body) == (200, b"word0 ")
    whole, *late = json.loads(own.body)
    assert (own.status, whole) == (200, "word0 word1 word2 ")
    assert {one["error"]["message"] for one in late} == {"the deadline passed before the answer was whole"}
    assert not pipeline.dead
    assert pipeline.handler.predict_until == float("inf")


def test_who_says_more_than_is_sent_is_stopped_there_and_costs_nobody_else() -> None:
    handler = Large()
    pipeline = Pipeline.start(handler, Path("."), Settings(batch_size=2, response_timeout_s=8, max_response_bytes=45_000))
    stranger, endless = answered(pipeline, [4], [10**9])
    assert (stranger.status, len(stranger.body)) == (200, 40_000)
    said = json.loads(endless.body)["error"]["message"]
    assert (endless.status, said) == (500, "the answer has more than the 45000 bytes that the server sends at most")
    assert handler.given == 4 + 5
    assert handler.runner.turn() == []
