"""A handler that streams, in this process: whole answers, and what its desk sends of pieces, errors and ends."""

from __future__ import annotations

import copy
import decimal
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker import BadRequest, Headers, Pipeline, Request, Settings
from slotwise.worker.batch import Batch
from slotwise.worker.budget import Budget
from slotwise.worker.decoding.decoders import MAX_STUCK
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.framed import as_request
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.steps.generators import GeneratorLoop
from slotwise.worker.steps.step_engine import End, Next, StepState
from slotwise.worker.steps.streams import Stream, StreamEnd, StreamPiece
from slotwise.worker.streaming.framed_streams import FramedStreams
from slotwise.worker.streaming.stream_desk import OpenRequest, StreamDesk
from slotwise.worker.streaming.stream_handler import StreamHandler
from tests.worker.steps.toy_engine import AddingEngine, item

MOST_BYTES = 64


class Words(StreamHandler):
    """A body is a JSON list; each number in it is an item and gives so many words, and a text is an error in its place."""

    headers: object = None

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [value if isinstance(value, int) else BadRequest(value) for value in json.loads(body)]

    def stream(self, item: int) -> Any:
        yield from (f"word{i} " for i in range(item))

    def response_headers(self) -> Any:
        if isinstance(self.headers, Exception):
            raise self.headers
        return self.headers


class Gives(Words):
    """Its `stream` returns what it is told to, whatever is sent."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def stream(self, item: int) -> Any:
        return self.given


def begin(handler: StreamHandler, settings: Settings | None = None) -> Pipeline:
    return Pipeline.start(handler, Path("."), settings or Settings(batch_size=4, max_response_bytes=MOST_BYTES))


def answers(handler: StreamHandler, *bodies: str) -> list[Any]:
    found = begin(handler).answer([Request(body.encode(), Headers(), f"id-{i}") for i, body in enumerate(bodies)])
    return [(one.status, one.body.decode()) for one in found]


def message(body: str) -> str:
    return str(json.loads(body)["error"]["message"])


# Whole answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [["a ", "b"], ("a ", "b"), iter(["a ", "b"])], ids=["list", "tuple", "iterator"])
def test_pieces_may_be_a_list_and_texts_are_answered_as_one_text(given: Any) -> None:
    assert answers(Gives(given), "[1]") == [(200, "a b")]


class KeepsOnItself(Words):
    """It has what a stream has said so far on itself."""

    def stream(self, item: int) -> Any:
        self.said: list[int] = []
        for i in range(item):
            self.said.append(item * 10 + i)
            yield {"all": list(self.said)}


class KeepsInADefault(Words):
    """It has what a stream has said so far in a list that all calls have."""

    def stream(self, item: int, said: list[int] = []) -> Any:  # noqa: B006  as authors write it
        said.clear()
        for i in range(item):
            said.append(item * 10 + i)
            yield {"all": list(said)}


class KeepsForItsThread(Words):
    """It has what a stream has said so far in a place of its thread, in which all streams run."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.of_thread = threading.local()

    def stream(self, item: int) -> Any:
        self.of_thread.said = []
        for i in range(item):
            self.of_thread.said.append(item * 10 + i)
            yield {"all": list(self.of_thread.said)}


class SetsALibrarysObject(Words):
    """It has an object of a library's on itself, which it tells what this stream is to have."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.numbers = decimal.Context()

    def stream(self, item: int) -> Any:
        self.numbers.prec = item
        for _ in range(item):
            yield {"third": str(self.numbers.divide(decimal.Decimal(1), decimal.Decimal(3)))}


class SeedsItsGenerator(Words):
    """It has one generator of random numbers, with a seed of each stream's own."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.torch = pytest.importorskip("torch")
        self.generator = self.torch.Generator()

    def stream(self, item: int) -> Any:
        self.generator.manual_seed(item)
        for _ in range(item):
            yield {"drawn": float(self.torch.rand(1, generator=self.generator))}


class KeepsACacheOfTokens(Words):
    """It has one cache of transformers, and its copies have the same layers."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.torch = pytest.importorskip("torch")
        self.cache = pytest.importorskip("transformers").DynamicCache()

    def stream(self, item: int) -> Any:
        cache = copy.copy(self.cache)
        cache.layers.clear()
        for i in range(item):
            token = self.torch.full((1, 1, 1, 1), item * 10 + i)
            yield {"read": cache.update(token, token, 0)[0].flatten().tolist()}


class WritesAFile(Words):
    """It has what a stream has said so far in a file of one name."""

    def stream(self, item: int) -> Any:
        Path("said.txt").write_text("")
        for i in range(item):
            with open("said.txt", "a") as file:
                file.write(f"{item * 10 + i} ")
            yield Path("said.txt").read_text()


class SetsHowNumbersArePrinted(Words):
    """It tells a library how to print, which that does for all."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.torch = pytest.importorskip("torch")

    def stream(self, item: int) -> Any:
        self.torch.set_printoptions(precision=item)
        for _ in range(item):
            yield str(self.torch.tensor([1 / 3]))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        KeepsOnItself,
        KeepsInADefault,
        KeepsForItsThread,
        SetsALibrarysObject,
        SeedsItsGenerator,
        KeepsACacheOfTokens,
        WritesAFile,
        SetsHowNumbersArePrinted,
    ],
)
def test_streams_that_keep_something_on_their_handler_run_one_after_the_other(
    kind: type[Words], caplog: pytest.LogCaptureFixture
) -> None:
    assert answers(kind(), "[3]", "[2]", "[1]") == [answers(kind(), body)[0] for body in ("[3]", "[2]", "[1]")]
    assert "run alone" in caplog.text or "run one after the other" in caplog.text


def test_streams_that_keep_nothing_on_their_handler_run_side_by_side() -> None:
    handler = Words()
    begin(handler)
    assert isinstance(handler.runner, GeneratorLoop)
    assert not handler.runner.one_by_one


def test_objects_and_other_texts_are_answered_as_a_list() -> None:
    pieces = [{"text": "a"}, {"text": "b", "score": 1}, {"text": 7}]
    ((status, body),) = answers(Gives(pieces), "[1]")
    assert (status, json.loads(body)) == (200, pieces)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": "a"}, "the handler's stream gave a dict, not pieces"),
        ("text", "the handler's stream gave a str, not pieces"),
        (None, "the handler's stream gave a NoneType, not pieces"),
        (["a", 7], "a piece of the answer is a int, neither a text nor an object"),
    ],
)
def test_what_is_no_pieces_is_that_requests_error(given: Any, said: str) -> None:
    ((status, body),) = answers(Gives(given), "[1]")
    assert (status, message(body)) == (500, said)


def test_a_handler_that_does_not_stream_after_all_answers_in_closed_batches() -> None:
    class Closed(Words):
        def load(self, model_dir: Path, settings: Settings) -> Any:
            self.streams = False
            return lambda inputs: [2 * one for one in inputs]

        def collate(self, items: list[Any]) -> Any:
            return items

        def encode(self, output: Any, item: Any) -> Any:
            assert super().encode([{"text": "a"}], item) == [{"text": "a"}], "outputs are no pieces here"
            return output

    assert answers(Closed(), "[4]", "[1, 2]") == [(200, "8"), (200, "[2, 4]")]


class Breaks(AddingEngine):
    """Fails for good once it is told to."""

    broken = False

    def prefill(self, slot: int, item: Any) -> Any:
        if self.broken:
            raise RuntimeError("the device is gone")
        return super().prefill(slot, item)


class Sums(Words):
    """Answers with what an engine of steps gives; its items are of tests/worker/steps/toy_engine.py."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return Breaks()

    def example(self) -> Any:
        return item(1, 1, tokens=2)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [item(value, tokens=3) for value in json.loads(body)]

    def advance(self, state: StepState, output: Any) -> Any:
        if len(state.tokens) + 1 == state.item["tokens"]:
            return End()  # no piece with it
        return Next(1, f"{int(output[0])} ")


def test_a_step_engine_that_is_dead_costs_503_and_the_worker() -> None:
    handler = Sums()
    pipeline = begin(handler)
    request = Request(b"[5]", Headers(), "id")
    assert pipeline.answer([request])[0].body == b"5 6 "
    handler.engine.broken = True
    (answer,) = pipeline.answer([request])
    assert answer.status == 503
    assert pipeline.dead
    assert handler.engine.held == {}, "no slot is left"


class SumsOnItself(Sums):
    """It has what a stream has said so far on itself."""

    def advance(self, state: StepState, output: Any) -> Any:
        if not state.tokens:
            self.said = ""
        self.said += f"{int(output[0])} "
        return End(self.said) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)


def test_streams_of_which_advance_keeps_something_on_the_handler_run_one_after_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = SumsOnItself()
    assert answers(handler, "[5]", "[6]", "[7]") == [(200, "5 6 7 "), (200, "6 7 8 "), (200, "7 8 9 ")]
    assert "run one after the other: `advance` changes said, which the others see" in caplog.text
    handler.runner.offer([Stream("slow", item(5, tokens=3)), Stream("next", item(6, tokens=3))])
    handler.runner.turn()
    handler.runner.hold("slow")
    assert [(one.id, type(one)) for _ in range(4) for one in handler.runner.turn()] == [
        ("slow", StreamEnd),
        ("next", StreamPiece),
        ("next", StreamEnd),
    ]


class SumsByAName(Sums):
    """What a stream has said so far has a name that is put together."""

    def advance(self, state: StepState, output: Any) -> Any:
        name = f"said_{'so'}_far"
        said = f"{getattr(self, name, '') if state.tokens else ''}{int(output[0])} "
        setattr(self, name, said)
        return End(said) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)


class SumsAmongItsVariables(Sums):
    def advance(self, state: StepState, output: Any) -> Any:
        own = self.__dict__
        own["said"] = f"{own['said'] if state.tokens else ''}{int(output[0])} "
        return End(own["said"]) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)


class SumsSetWhenItLoads(Sums):
    """Its `advance` is no method of its class."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.advance = self._advance  # type: ignore[method-assign]
        return super().load(model_dir, settings)

    def _advance(self, state: StepState, output: Any) -> Any:
        self.said = f"{self.said if state.tokens else ''}{int(output[0])} "
        return End(self.said) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)


class Wrapped:
    """A decorator that nobody sees through."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return lambda *given: self.function(owner, *given)


class SumsBehindADecorator(SumsSetWhenItLoads):
    advance = Wrapped(SumsSetWhenItLoads._advance)

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return Breaks()


class SumsSeeded(Sums):
    """It draws from the generator that all have, with a seed of each stream's own."""

    def advance(self, state: StepState, output: Any) -> Any:
        if not state.tokens:
            random.seed(int(output[0]))
        drawn = f"{random.random()} "
        return End(drawn) if len(state.tokens) + 1 == state.item["tokens"] else Next(1, drawn)


@pytest.mark.parametrize("kind", [SumsByAName, SumsAmongItsVariables, SumsSetWhenItLoads, SumsBehindADecorator, SumsSeeded])
def test_streams_run_one_after_the_other_where_nobody_can_tell_what_advance_keeps(
    kind: type[Sums], caplog: pytest.LogCaptureFixture
) -> None:
    assert answers(kind(), "[5]", "[6]", "[7]") == [answers(kind(), body)[0] for body in ("[5]", "[6]", "[7]")]
    assert "run one after the other" in caplog.text


@dataclass
class SaidSoFar:
    text: str = ""
    words: list[str] = field(default_factory=list)


class Saying:
    def __init__(self) -> None:
        self.text = ""

    def add(self, word: str) -> None:
        self.text += word


class Kind(Enum):
    WORD = "word"


class SumsInADataclass(Sums):
    """It has what is a stream's where that belongs, in objects of its own classes."""

    def advance(self, state: StepState, output: Any) -> Any:
        own = state.own or SaidSoFar()
        state.own = own
        own.text += f"{int(output[0])} "
        own.words.append(Kind.WORD.value)
        return End(own.text) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)


class SumsInAnObject(Sums):
    def advance(self, state: StepState, output: Any) -> Any:
        if state.own is None:
            state.own = self.begun()
        state.own.add(f"{int(output[0])} ")
        return End(state.own.text) if len(state.tokens) + 1 == state.item["tokens"] else Next(1)

    def begun(self) -> Saying:
        return Saying()


@pytest.mark.parametrize("kind", [SumsInADataclass, SumsInAnObject])
def test_streams_that_keep_objects_of_the_authors_in_their_own_state_run_side_by_side(
    kind: type[Sums], caplog: pytest.LogCaptureFixture
) -> None:
    assert answers(kind(), "[5]", "[6]", "[7]") == [(200, "5 6 7 "), (200, "6 7 8 "), (200, "7 8 9 ")]
    assert "one after the other" not in caplog.text


class SumsForEncode(Sums):
    """It leaves for `encode` on itself what is of a stream."""

    def advance(self, state: StepState, output: Any) -> Any:
        self.last = int(output[0])
        return super().advance(state, output)

    def encode(self, output: Any, item: Any) -> Any:
        return f"{super().encode(output, item)}, {self.last}"


def test_where_advance_leaves_something_for_encode_requests_run_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    assert answers(SumsForEncode(), "[5]", "[6]", "[7]") == [(200, "5 6 , 7"), (200, "6 7 , 8"), (200, "7 8 , 9")]
    assert "what a hook leaves in last seems to be of a request" in caplog.text
    assert "requests run one after the other" in caplog.text
    caplog.clear()
    begin(Sums())
    assert not caplog.text


class WordsForEncode(Words):
    """Two of its hooks leave for `encode` on itself what is of a request."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.body = body.decode()
        return super().decode(body, headers)

    def stream(self, item: int) -> Any:
        for i in range(item):
            self.last = item * 10 + i
            yield "."

    def encode(self, output: Any, item: Any) -> Any:
        return [self.body, self.last]


WHOLE = {"[1]": ["[1]", 10], "[3]": ["[3]", 32], "[1, 2]": [["[1, 2]", 10], ["[1, 2]", 21]]}


def test_what_a_stream_leaves_for_encode_is_read_before_another_begins() -> None:
    given = answers(WordsForEncode(), *WHOLE)
    assert [(status, json.loads(body)) for status, body in given] == [(200, whole) for whole in WHOLE.values()]


# Its desk ----------------------------------------------------------------------------------------------------------------


class Desk:
    """A desk that is asked with JSON, and all that it has sent."""

    def __init__(self, handler: StreamHandler, settings: Settings | None = None) -> None:
        self.pipeline = begin(handler, settings)
        self.desk = StreamDesk(self.pipeline, handler.runner)

    def ask(self, body: str, *, pieces: bool) -> list[Frame]:
        batch = Batch([Request(body.encode(), Headers(), "id")])
        self.pipeline.decode(batch, Budget(1, 60, 1000))
        sent = self.desk.take(OpenRequest(1, batch, pieces))
        return sent + list(self._turns())

    def _turns(self) -> Iterator[Frame]:
        while self.desk.busy:
            yield from self.desk.turn()
        assert self.desk.open == {}
        assert len(self.desk.ended) == 1


def error(frame: Frame) -> tuple[int, str]:
    assert frame.kind == frames.ANSWER
    return frames.answer_about(frame.text)[0], message(frame.body.decode())


def test_the_desk_sends_a_head_with_the_first_piece_and_an_end() -> None:
    *pieces, end = Desk(Words()).ask("[2]", pieces=True)
    assert [(one.flags, one.body) for one in pieces] == [
        (frames.MORE, b'{"text": "word0 "}'),
        (frames.MORE, b'{"text": "word1 "}'),
    ]
    assert frames.answer_about(pieces[0].text)[0] == 200
    assert (pieces[1].text, end.kind, end.flags, end.body) == (b"", frames.PIECE, 0, b"")


@pytest.mark.parametrize("pieces", [True, False])
def test_an_answer_of_more_bytes_than_are_sent_ends_as_an_error_and_frees_its_place(pieces: bool) -> None:
    desk = Desk(Words())
    *sent, last = desk.ask("[100]" if pieces else "[100, 100, 100]", pieces=pieces)
    assert error(last) == (500, "the answer has more than the 64 bytes that the server sends at most")
    assert sum(len(frame.body) for frame in sent) <= MOST_BYTES
    assert len(sent) == (3 if pieces else 0), (
        "the first of its three items says too much, and the others' next pieces are nobody's"
    )
    assert desk.desk.runner.turn() == []


def test_headers_that_fail_are_the_streams_error_and_no_piece_comes_before_it() -> None:
    handler = Words()
    desk = Desk(handler)
    handler.headers = OSError("a file that is gone")
    (only,) = desk.ask("[2]", pieces=True)
    assert error(only) == (500, "the handler's response headers failed")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('["no number"]', "no number"),
        ("[1, 2]", "a stream answers one input, and this body has 2: ask for the whole answer"),
    ],
)
def test_a_stream_is_of_one_item_and_its_error_is_the_streams(body: str, said: str) -> None:
    (only,) = Desk(Words()).ask(body, pieces=True)
    assert error(only) == (400, said)


def test_a_whole_answer_has_errors_in_their_places() -> None:
    (only,) = Desk(Words()).ask('[1, "no number"]', pieces=False)
    first, second = json.loads(only.body)
    assert (frames.answer_about(only.text)[0], first, second["error"]["code"]) == (200, "word0 ", 400)


# Its threads -------------------------------------------------------------------------------------------------------------


class Interrupts(Words):
    def cost(self, body: bytes, headers: Headers) -> Any:
        raise KeyboardInterrupt


def runs_out() -> Iterator[Frame]:
    yield Frame(frames.REQUEST, 1, frames.request_text({}, ""), b"[2]", frames.STREAM)
    raise MemoryError


def asks_once() -> Iterator[Frame]:
    yield Frame(frames.REQUEST, 1, frames.request_text({}, ""), b"[2]", frames.STREAM)
    threading.Event().wait()


def served(desk: Desk, received: Iterator[Frame]) -> tuple[list[Frame], list[BaseException]]:
    """All that a worker says until it ends, and what ended it; it has half a minute for that."""
    worker = SimpleNamespace(pipeline=desk.pipeline, desk=desk.desk, measured_streams=lambda ended: [])
    said, ended_by = list[Frame](), list[BaseException]()

    def serve() -> None:
        try:
            FramedStreams(worker, as_request).serve(SimpleNamespace(send=said.extend), received)  # type: ignore[arg-type]
        except BaseException as error:
            ended_by.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return [frame for frame in said if frame.kind != frames.BEAT], ended_by


@pytest.mark.parametrize("left", range(2), ids=["all wait", "one leaves"])
def test_where_hooks_leave_something_for_encode_a_worker_answers_one_request_after_the_other(left: int) -> None:
    bodies = [body for body in WHOLE for _ in range(4)]
    done = threading.Event()

    def asks() -> Iterator[Frame]:
        for i, body in enumerate(bodies):
            yield Frame(frames.REQUEST, i, frames.request_text({}, ""), body.encode())
        if left:
            yield Frame(frames.CANCEL, 5)
        assert done.wait(30)

    desk = Desk(WordsForEncode())
    turn = desk.desk.turn

    def turned() -> list[Frame]:
        out = turn()
        if any(frame.id == len(bodies) - 1 for frame in out):
            done.set()
        return out

    desk.desk.turn = turned  # type: ignore[method-assign]
    said, ended_by = served(desk, asks())
    assert ended_by == []
    given = {frame.id: json.loads(frame.body) for frame in said if frame.kind == frames.ANSWER}
    assert given == {i: WHOLE[body] for i, body in enumerate(bodies) if i in given}
    assert len(given) >= len(bodies) - left


class TakesLong(Words):
    """Its `decode` leaves for `stream` how it was asked; the first one's lasts until another one streams."""

    streams = threading.Event()

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        asked = json.loads(body)
        if asked[0]:
            self.streams.wait(60)
        self.last = asked[1]
        return asked[1:]

    def stream(self, item: int) -> Any:
        self.streams.set()
        for _ in range(2):
            time.sleep(0.2)
            yield f"{self.last} "


def test_who_is_decoded_for_too_long_leaves_nothing_for_the_next_stream() -> None:
    handler = TakesLong()
    desk = Desk(handler, Settings(batch_size=4, response_timeout_s=1.2))

    def asks() -> Iterator[Frame]:
        for i, body in enumerate([b"[1, 1]", b"[0, 2]"]):
            yield Frame(frames.REQUEST, i, frames.request_text({}, ""), body)
        threading.Event().wait(3)

    handler.streams.clear()  # at its start it has streamed
    said, ended_by = served(desk, asks())
    handler.streams.set()
    assert ended_by == []
    assert [(frame.kind, frame.id, frame.flags) for frame in said] == [(frames.ANSWER, 0, 0), (frames.DONE, 0, frames.DEAD)]
    assert frames.answer_about(said[0].text)[0] == 503


@pytest.mark.parametrize(
    ("handler", "received", "ended_by"), [(Words(), runs_out, MemoryError), (Interrupts(), asks_once, KeyboardInterrupt)]
)
def test_a_worker_one_of_whose_threads_has_ended_ends(handler: Words, received: Any, ended_by: type[BaseException]) -> None:
    """Else its beats would say that it lives, and nobody would ever be answered."""
    assert list(map(type, served(Desk(handler), received())[1])) == [ended_by]


def test_a_worker_whose_engine_dies_says_so_and_ends_no_stream() -> None:
    handler = Sums()
    desk = Desk(handler)
    handler.engine.broken = True
    said, ended_by = served(desk, asks_once())
    assert (said, ended_by) == ([Frame(frames.DONE, flags=frames.DEAD)], [])


def test_where_the_worker_itself_fails_to_decode_every_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def asks_twice() -> Iterator[Frame]:
        for identity in (1, 2):
            yield Frame(frames.REQUEST, identity, frames.request_text({}, ""), b"[2]", frames.STREAM)
        assert answered.wait(30)

    desk = Desk(Words())
    taken: list[int] = []
    take = desk.desk.take

    def counted(one: OpenRequest) -> list[Frame]:
        taken.append(one.id)
        if len(taken) == 2:
            answered.set()
        return take(one)

    monkeypatch.setattr(desk.pipeline, "decode", lambda batch, budget: 1 / 0)
    monkeypatch.setattr(desk.desk, "take", counted)
    said, ended_by = served(desk, asks_twice())
    assert ended_by == []
    assert [(frame.id, *error(frame)) for frame in said] == [(i, 500, "the handler failed") for i in (1, 2)]


def test_a_worker_whose_decoders_never_end_ends_after_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(Words())
    monkeypatch.setattr(desk.pipeline.decoders, "stuck", lambda: MAX_STUCK + 1)
    said, ended_by = served(desk, asks_once())
    assert (said[-1], ended_by) == (Frame(frames.DONE, flags=frames.DEAD), [])


def test_a_handler_whose_example_cannot_be_streamed_does_not_start() -> None:
    class Fails(Words):
        def example(self) -> Any:
            return 1

        def stream(self, item: int) -> Any:
            raise BadRequest("not even this")

    with pytest.raises(ValueError, match="the warm-up input fails: not even this"):
        begin(Fails())
