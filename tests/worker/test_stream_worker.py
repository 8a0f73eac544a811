"""A real worker that streams, asked in frames: pieces, whole answers, errors, cancelled requests, and what is no frame."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slotwise.archive.inspection import extract
from slotwise.archive.local_model import LocalModel
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import Frame, FrameReader
from tests.backends.streaming_models import GENERATOR, STEPS, streaming_archive

PATIENCE_S = 120


@dataclass
class Spoken:
    """A worker's process and the socket that it is spoken to on. said: all frames but beats and numbers, by id."""

    sock: socket.socket
    process: subprocess.Popen[bytes]
    reader: FrameReader = field(default_factory=lambda: FrameReader(frames.FROM_WORKER))
    said: dict[int, list[Frame]] = field(default_factory=dict)
    turns: int = 0  # that it told of
    order: list[int] = field(default_factory=list)

    def send(self, *sent: Frame) -> None:
        for frame in sent:
            self.sock.sendall(frame.head + frame.text + frame.body)

    def ask(self, identity: int, body: str, *, pieces: bool = True, **headers: str) -> None:
        text = frames.request_text({"content-type": "application/json", **headers}, "")
        self.send(Frame(frames.REQUEST, identity, text, body.encode(), frames.STREAM if pieces else 0))

    def hear(self) -> bool:
        """Wait for more; returns whether there is any."""
        data = self.sock.recv(1 << 16)
        for frame in self.reader.frames(data):
            self.turns += frame.kind == frames.BEAT and frame.flags == frames.TURN
            if frame.kind not in (frames.BEAT, frames.NUMBERS):
                self.said.setdefault(frame.id, []).append(frame)
                self.order.append(frame.id)
        return bool(data)

    def answer(self, identity: int) -> list[Frame]:
        """All that is said of a request until its end."""
        while not any(not frame.flags & frames.MORE for frame in self.said.get(identity, ())):
            assert self.hear(), "the worker has gone"
        return self.said[identity]

    def pieces(self, identity: int) -> list[bytes]:
        """The pieces of a stream that ends well."""
        *pieces, end = self.answer(identity)
        assert (end.kind, end.body, end.flags) == (frames.PIECE, b"", 0)
        assert all(piece.flags == frames.MORE for piece in pieces)
        return [piece.body for piece in pieces]

    def error(self, identity: int) -> tuple[int, str]:
        """Status and message of the error that a request ends with."""
        last = self.answer(identity)[-1]
        assert last.kind == frames.ANSWER
        return frames.answer_about(last.text)[0], json.loads(last.body)["error"]["message"]


def spoken(archive: Path, folder: Path, *, streams: bool = True) -> Iterator[Spoken]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    model_dir = extract(archive, folder / archive.stem)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotwise.worker.hosts.framed", str(theirs.fileno())],
            cwd=model_dir, env={**os.environ, "SLOTWISE_PROFILE": "cpu", "PYTHONPATH": str(model_dir)},
            stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
    worker = Spoken(ours, process)
    worker.send(frames.of_json(frames.START, {"version": frames.VERSION, "batch_size": 4, "streams": streams}))
    worker.answer(0)
    yield worker
    ours.close()
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streaming_archive(tmp_path_factory.mktemp("words"), "words", GENERATOR)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streaming_archive(tmp_path_factory.mktemp("sums"), "sums", STEPS)


@pytest.fixture
def words(generator: Path, tmp_path: Path) -> Iterator[Spoken]:
    yield from spoken(generator, tmp_path)


@pytest.fixture
def sums(steps: Path, tmp_path: Path) -> Iterator[Spoken]:
    yield from spoken(steps, tmp_path)


def of_words(count: int) -> list[bytes]:
    return [json.dumps({"text": f"word{i} "}).encode() for i in range(count)]


def test_it_says_that_it_streams_and_each_request_gets_its_own_pieces(words: Spoken) -> None:
    assert words.said[0][0].json()["streams"] == {"slots": 4}
    for i in range(1, 13):
        words.ask(i, f"[{i}]", pieces=i % 3 > 0)
    for i in range(1, 13):
        if i % 3:
            assert words.pieces(i) == of_words(i)
            status, headers = frames.answer_about(words.said[i][0].text)
            assert (status, headers[0]) == (200, (b"content-type", b"text/event-stream"))
            assert (b"x-batch-slot", b"0") in headers
            assert all(not frame.text for frame in words.said[i][1:])
        else:
            (whole,) = words.answer(i)
            assert (whole.kind, whole.body) == (frames.ANSWER, "".join(f"word{k} " for k in range(i)).encode())
            assert frames.answer_about(whole.text)[1][0] == (b"content-type", b"text/plain; charset=utf-8")


def test_requests_are_answered_side_by_side(words: Spoken) -> None:
    """The long one cannot end before the short one is asked: its pieces are more than its socket takes."""
    words.ask(1, '[60, "large"]')
    while 1 not in words.said:
        words.hear()
    words.ask(2, "[1]")
    assert words.pieces(2) == of_words(1)
    assert len(words.pieces(1)) == 60
    assert words.order.index(2) < max(i for i, of in enumerate(words.order) if of == 1)


def test_an_error_is_an_answer_before_the_first_piece_and_in_the_middle(words: Spoken) -> None:
    words.ask(1, "[]")
    words.ask(2, "[4, 'raise', 2]".replace("'", '"'))
    words.ask(3, '[4, "refuse", 0]')
    words.ask(4, '[4, "number", 1]')
    words.ask(5, "[[1], [2]]")
    words.ask(6, "[3]", **{"x-seed": "-1"})
    words.ask(7, "[3]", **{"x-deadline-ms": "1000"})
    assert words.error(1) == (400, "there is nothing to say")
    assert (words.error(2)[0], len(words.said[2])) == (500, 3)
    assert (words.error(3), len(words.said[3])) == ((400, "no more of it"), 1)
    assert words.error(4) == (500, "a piece of the answer is a int, neither a text nor an object")
    assert words.error(5)[0] == 400
    assert "2: ask for the whole answer" in words.error(5)[1]
    assert words.error(6)[0] == 400
    assert words.error(7)[0] == 504
    words.ask(8, '[[1], [3, "refuse", 1], [2]]', pieces=False)
    whole = words.answer(8)[0]
    assert frames.answer_about(whole.text)[0] == 200
    assert json.loads(whole.body) == ["word0 ", {"error": {"code": 400, "message": "no more of it"}}, "word0 word1 "]


def test_a_piece_is_one_line_of_json(words: Spoken) -> None:
    words.ask(1, '[2, "lines", 1]')
    pieces = words.pieces(1)
    assert json.loads(pieces[1]) == {"text": "a\nb\r\u2028c", "more": [1, {}]}
    assert not any(b"\n" in piece or b"\r" in piece for piece in pieces)


def test_a_request_that_is_cancelled_frees_its_place_and_says_so(words: Spoken) -> None:
    for i in range(1, 5):
        words.ask(i, '[100000, "slow"]', pieces=i % 2 > 0)
    words.ask(5, "[3]")
    while len(words.said.get(1, ())) < 3:
        words.hear()
    assert 5 not in words.said
    words.send(Frame(frames.CANCEL, 1), Frame(frames.CANCEL, 77))
    assert words.pieces(5) == of_words(3)
    assert words.answer(1)[-1].flags == 0
    assert 77 not in words.said
    words.ask(6, "[3]")
    words.send(Frame(frames.CANCEL, 6))
    assert words.pieces(6) == []
    words.send(*(Frame(frames.CANCEL, i) for i in (2, 3, 4)))
    for i in (2, 3, 4):
        assert words.answer(i)[-1] == Frame(frames.PIECE, i)


def test_a_stream_goes_on_after_what_another_worker_has_sent(words: Spoken, sums: Spoken) -> None:
    words.send(*(Frame(frames.SENT, 1, body=piece) for piece in of_words(2)))
    words.ask(1, "[5]")
    assert words.pieces(1) == of_words(5)[2:]
    words.send(Frame(frames.SENT, 2, body=b'{"text": "another"}'))
    words.ask(2, "[5]")
    assert words.error(2)[0] == 500
    sums.ask(1, "3 6", **{"x-request-id": "r1"})
    whole = sums.pieces(1)
    sums.send(*(Frame(frames.SENT, 2, body=piece) for piece in whole[:4]))
    sums.ask(2, "3 6", **{"x-request-id": "r1"})
    assert sums.pieces(2) == whole[4:]  # what was drawn follows from the request's id


def test_requests_join_and_leave_between_two_steps_and_a_bad_one_ends_alone(sums: Spoken) -> None:
    sums.ask(1, "1000 1000000", **{"x-seed": "1"})  # it would not end before the others
    for i in range(2, 10):
        sums.ask(i, f"{i} {i}", **{"x-seed": str(i)})
    sums.ask(20, "660 30")  # its seventh step fails
    for i in range(2, 10):
        assert [json.loads(piece)["text"].partition("/")[0] for piece in sums.pieces(i)] == [str(i + k) for k in range(i)]
    assert (sums.error(20)[0], len(sums.said[20]) - 1) == (500, 6)
    sums.send(Frame(frames.CANCEL, 1))
    long = [json.loads(piece)["text"].partition("/")[0] for piece in sums.pieces(1)]
    assert long == [str(1000 + k) for k in range(len(long))]


@pytest.mark.parametrize(
    "sent",
    [
        Frame(frames.START, text=b'{"version": 1, "batch_size": 4}'),
        Frame(frames.REQUEST, 1, b"\0", b"[3]", frames.STREAM),
        Frame(frames.PIECE, 1),
        Frame(frames.REQUEST, 2, b"a name without a value\0", b"[3]", frames.STREAM),
    ],
    ids=["a second start", "a request twice", "no frame of a front's", "headers that are none"],
)
def test_a_front_that_breaks_the_protocol_ends_its_worker(words: Spoken, sent: Frame) -> None:
    words.ask(1, "[1000]")
    words.send(sent)
    while words.hear():
        pass
    assert words.process.wait(PATIENCE_S) == 1


def test_a_worker_that_says_nothing_for_long_tells_of_its_turns(words: Spoken) -> None:
    words.ask(1, '[100000, "slow"]', pieces=False)
    while words.turns < 2:
        words.hear()
    assert 1 not in words.said


def test_a_front_that_knows_no_streams_gets_batches(generator: Path, tmp_path: Path) -> None:
    for worker in spoken(generator, tmp_path, streams=False):
        text = frames.request_text({"content-type": "application/json"}, "")
        worker.send(Frame(frames.REQUEST, 1, text, b"[2]", frames.MORE), Frame(frames.REQUEST, 2, text, b"[1]"))
        assert [worker.answer(i)[0].body for i in (1, 2)] == [b"word0 word1 ", b"word0 "]
        while len(worker.said[0]) < 2:
            worker.hear()
        assert worker.said[0][1].kind == frames.DONE


def test_a_worker_ends_with_its_front(words: Spoken) -> None:
    words.ask(1, '[100000, "slow"]')
    words.sock.shutdown(socket.SHUT_RDWR)
    words.process.wait(PATIENCE_S)


def test_hosts_that_know_no_streams_get_whole_answers(generator: Path, steps: Path) -> None:
    with LocalModel(generator) as model:
        first, bad, last = model.answer([b"[2]", b'[3, "raise", 1]', b"[3]"])
        assert [one.body for one in (first, last)] == [b"word0 word1 ", b"word0 word1 word2 "]
        assert bad.status == 500
    with LocalModel(steps) as model:
        began = time.monotonic()
        answers = model.answer([b"1 3", b"660 30", b"2 4"])
        assert time.monotonic() - began < PATIENCE_S
        assert [one.status for one in answers] == [200, 500, 200]
        assert answers[2].body.startswith(b"2/")
