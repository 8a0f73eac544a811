"""What a hook of a BatchHandler leaves for a later one goes to no other request, in whatever hook and by whatever name."""

from __future__ import annotations

import ctypes
import json
import queue
import random
import threading
import time
from email.feedparser import FeedParser
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BatchHandler, Cost, Headers, Settings, StreamHandler
from slotwise.worker.steps.streams import Stream, StreamPiece, TurnLimits
from tests.worker.toy import Doubler, ask, begin


class Numbers(Doubler):
    """A body is a JSON list of numbers, each of which is a row."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(number) for number in json.loads(body)]


class CostParses(Numbers):
    def cost(self, body: bytes, headers: Headers) -> Cost:
        self.parsed = json.loads(body)
        return Cost(0.1, 1000)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(number) for number in self.parsed]


class GroupsNote(Numbers):
    def groups(self, items: Any) -> list[list[int]]:
        self.last = float(items[-1])
        return super().groups(items)

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.last]


class HeadersTell(Numbers):
    def predict(self, inputs: Any) -> Any:
        self.last = float(inputs[-1])
        return super().predict(inputs)

    def response_headers(self) -> dict[str, str]:
        return {"x-last": str(self.last)}


class SetsByName(Numbers):
    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        rows = super().decode(body, headers)
        for name, value in (("first", rows[0]), ("last", rows[-1])):
            setattr(self, name, float(value))
        return rows

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.last]  # type: ignore[attr-defined]


class SetsInItsDict(SetsByName):
    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        rows = Numbers.decode(self, body, headers)
        self.__dict__.update(last=float(rows[-1]))
        return rows


class SetsInItsVariables(SetsByName):
    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        rows = Numbers.decode(self, body, headers)
        own = vars(self)
        own["last"] = float(rows[-1])
        return rows


class TellsALibrarysObject(Numbers):
    """It has an object whose class is nobody's but a library's."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.message = Message()
        return super().load(model_dir, settings)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.message.set_payload(body.decode())
        return super().decode(body, headers)

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.message.get_payload()]


class FeedsALibrarysObject(Numbers):
    """Nobody wants what `feed` gives: it is called for what it leaves there."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.parser = FeedParser()
        return super().load(model_dir, settings)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.parser.feed(f"last: {body.decode()}\n")
        return super().decode(body, headers)

    def encode(self, output: Any, item: Any) -> Any:
        last, self.parser = self.parser.close()["last"], FeedParser()
        return [float(output), last]


class TimesItself(Numbers):
    """What it tells a library's object is of no request."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.turn = threading.Condition()
        return super().load(model_dir, settings)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.turn.acquire()
        self.turn.notify_all()
        self.turn.release()
        return super().decode(body, headers)

    def encode(self, output: Any, item: Any) -> Any:
        with self.turn:
            return super().encode(output, item)


KINDS = [
    CostParses,
    GroupsNote,
    HeadersTell,
    SetsByName,
    SetsInItsDict,
    SetsInItsVariables,
    TellsALibrarysObject,
    FeedsALibrarysObject,
]


def said(kind: type[BatchHandler], *bodies: Any) -> list[Any]:
    """What one batch of these is answered with, and the header of ours."""
    answers = ask(begin(kind(), Settings(batch_size=8, proof_s=0, decode_threads=2)), bodies)
    return [(answer.code, answer.value, answer.headers.get("x-last")) for answer in answers]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_hook_leaves_for_a_later_one_is_of_its_own_request(
    kind: type[BatchHandler], caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [[7], [1], [300], [5], [7]]
    together = said(kind, *bodies)
    assert together == [said(kind, body)[0] for body in bodies]
    assert [code for code, *_ in together] == [200] * 5
    assert "so requests run one after the other" in caplog.text


class CollateMarks(Numbers):
    """What `collate` leaves, `predict` reads of the same rows."""

    def collate(self, items: list[Any]) -> Any:
        self.negative = np.array([item < 0 for item in items])
        return super().collate(items)

    def predict(self, inputs: Any) -> Any:
        return np.where(self.negative, 0, 2 * inputs)


class CollateCounts(CollateMarks):
    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), len(self.negative)]


@pytest.mark.parametrize(("kind", "one_by_one"), [(CollateMarks, False), (CollateCounts, True), (TimesItself, False)])
def test_what_collate_leaves_for_predict_is_of_the_rows_that_both_are_called_for(
    kind: type[BatchHandler], one_by_one: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [[7], [-1], [2, -3], [5]]
    assert said(kind, *bodies) == [said(kind, body)[0] for body in bodies]
    assert ("so requests run one after the other" in caplog.text) == one_by_one


class LibraryWrites(Numbers):
    """What it gives also stands in memory that it has told a library of, by its address."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.written = np.zeros(8, np.float32)
        self.address = self.written.ctypes.data
        return super().load(model_dir, settings)

    def predict(self, inputs: Any) -> Any:
        outputs = super().predict(inputs)
        ctypes.memmove(self.address, outputs.tobytes(), outputs.nbytes)
        return outputs

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), float(self.written[0])]


def test_once_rows_are_seen_to_be_mixed_each_is_encoded_before_the_next_one_runs(tmp_path: Path) -> None:
    handler = begin(LibraryWrites(), Settings(batch_size=8, proof_s=60), tmp_path)
    for bodies in ([[7], [1], [2]], [[3], [4, 6], [5]]):
        answers = ask(handler, bodies)
        assert [answer.value for answer in answers] == [
            [2.0 * body[0]] * 2 if len(body) == 1 else [[2.0 * number] * 2 for number in body] for body in bodies
        ]
    assert handler.max_rows == 1


class KeepsItsRow(Numbers):
    """What `decode` reads stands on the handler until it is whole."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.rows: list[Any] = []
        for number in json.loads(body):
            time.sleep(0.002)
            self.rows.append(np.float32(number))
        return self.rows


class FillsOneArray(Numbers):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.numbers = np.zeros(3, np.float32)
        return lambda inputs: inputs.sum(axis=1)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.numbers[:] = json.loads(body)
        time.sleep(0.002)
        return [self.numbers]


class Reader:
    def __init__(self) -> None:
        self.read: list[float] = []

    def numbers(self, body: bytes) -> list[float]:
        self.read.clear()
        for number in json.loads(body):
            time.sleep(0.002)
            self.read.append(number)
        return list(self.read)


class HasAReader(Numbers):
    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.reader = Reader()
        return super().load(model_dir, settings)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(number) for number in self.reader.numbers(body)]


@pytest.mark.parametrize("kind", [KeepsItsRow, FillsOneArray, HasAReader])
def test_what_decode_keeps_while_it_reads_is_of_one_request(kind: type[BatchHandler], caplog: pytest.LogCaptureFixture) -> None:
    bodies = [[number, number + 1, 2 * number] for number in range(8)]
    for _ in range(4):
        assert said(kind, *bodies) == [said(kind, body)[0] for body in bodies]
    assert "requests are read one after the other" in caplog.text
    assert "so requests run one after the other" not in caplog.text


class TakesLong(Numbers):
    """It leaves its last number, and is told to take longer for it than a batch may: until another one is encoded."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.left, self.encodes = threading.Event(), threading.Event()
        return super().load(model_dir, settings)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        rows = super().decode(body, headers)
        if rows[0] < 0:
            self.encodes.wait(60)
        self.last = float(rows[-1])
        if rows[0] < 0:
            self.left.set()
        return rows

    def encode(self, output: Any, item: Any) -> Any:
        self.encodes.set()
        self.left.wait(1)
        return [float(output), self.last]


def test_who_is_read_for_too_long_leaves_nothing_for_those_that_come_next() -> None:
    handler = begin(TakesLong(), Settings(batch_size=4, proof_s=0, response_timeout_s=1.2, decode_threads=2))
    handler.encodes.clear()  # at its start it has encoded
    answers = ask(handler, [[-1], [7], [8]])
    handler.encodes.set()
    assert [answer.code for answer in answers] == [503] * 3
    assert handler.pipeline.dead


class CutsTexts(Numbers):
    """It has a tokenizer of transformers, which keeps how it was told to cut a text."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
        words = tokenizers.models.WordLevel({"a": 0, "[PAD]": 1}, unk_token="a")
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), pad_token="[PAD]")
        self.most = 8
        return lambda inputs: inputs

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(len(self.tokenizer("a", truncation=True, max_length=self.most)["input_ids"]))]

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.tokenizer.decode([0])]


class CutsAsItIsTold(CutsTexts):
    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        most = json.loads(body)
        return [np.float32(len(self.tokenizer("a", truncation=True, max_length=most)["input_ids"]))]


class CutsInTwoWays(CutsTexts):
    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        question = self.tokenizer("a", truncation=True, max_length=2)["input_ids"]
        return [np.float32(len(question) + len(self.tokenizer.encode("a", padding="max_length", max_length=3)))]


@pytest.mark.parametrize(("kind", "one_at_a_time"), [(CutsTexts, False), (CutsAsItIsTold, True), (CutsInTwoWays, True)])
def test_a_tokenizer_that_is_told_how_to_cut_reads_one_request_at_a_time(
    kind: type[CutsTexts], one_at_a_time: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handler = begin(kind(), Settings(batch_size=8, proof_s=0, decode_threads=2))
    assert [answer.code for answer in ask(handler, [4, 8])] == [200, 200]
    assert ("requests are read one after the other" in caplog.text) == one_at_a_time
    assert "so requests run one after the other" not in caplog.text


class SeedsWhileItReads(StreamHandler):
    """Its `decode` draws numbers of a seed, in a thread beside the streams."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        random.seed(len(body))
        return [random.random()]

    def stream(self, item: float) -> Any:
        yield {"drawn": item}


def test_a_stream_whose_decode_sets_a_seed_is_read_when_the_one_before_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert begin(SeedsWhileItReads(), Settings(batch_size=4)).pipeline.apart
    assert "so requests run one after the other" in caplog.text


class HasOneQueue(StreamHandler):
    """Its pieces come from a thread, by a queue that all streams have, one after the other."""

    limits = TurnLimits(turn_s=0.05, parked_s=0.5)

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.made = queue.SimpleQueue[Any]()

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [json.loads(body)]

    def stream(self, item: int) -> Any:
        threading.Thread(target=lambda: [self.made.put(one) for one in [*[f"{item} "] * 5, None]]).start()
        while (piece := self.made.get()) is not None:
            yield piece


class HasNoEnd(HasOneQueue):
    def stream(self, item: int) -> Any:
        self.said = 0
        while item == 1 or self.said < 5:
            self.said += 1
            yield f"{item} "


@pytest.mark.parametrize("kind", [HasOneQueue, HasNoEnd])
def test_what_a_stream_that_was_cancelled_leaves_is_in_no_other_stream(kind: type[StreamHandler]) -> None:
    runner = begin(kind(), Settings(batch_size=4)).runner
    runner.offer([Stream("a", 1), Stream("b", 2)])
    assert [event.id for event in runner.turn()] == ["a"]
    runner.cancel("a")
    assert runner.busy
    pieces, until = [], time.monotonic() + 10
    while runner.busy and time.monotonic() < until:
        pieces += [json.loads(event.data)["text"] for event in runner.turn() if isinstance(event, StreamPiece)]
    assert pieces == ["2 "] * 5
