"""The worker's end of our own host's socket, in this process: what it sends, what it refuses, and when it ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker import Request
from slotwise.worker.answer import Answer
from slotwise.worker.hosts import framed, frames
from slotwise.worker.hosts.framed import FramedHost, HostLink
from slotwise.worker.hosts.frames import BrokenFrame, Frame, FrameReader

START = frames.of_json(frames.START, {"version": frames.VERSION, "batch_size": 8})
TEXT = frames.request_text({}, "")


class Twice:
    """Stands in for an archive's handler: answers every body twice as long. fails: what `between` raises."""

    started: dict[str, Any] = {"engine": "none"}  # noqa: RUF012

    def __init__(self) -> None:
        self.dead, self.betweens, self.fails = False, 0, False

    def run(self, requests: Sequence[Request]) -> Any:
        self.dead = any(request.body == b"end" for request in requests)
        answers = [Answer(200, "text/plain", 2 * request.body, {}) for request in requests]
        return SimpleNamespace(answers=answers, total_ms=3.0, decode_ms=1.0, inference_ms=2.0)

    def between(self) -> None:
        self.betweens += 1
        if self.fails:
            raise OSError("a full disk, perhaps")

    def take_metrics(self) -> list[list[Any]]:
        return [["Seen", 1.0, "", None]]


class Spoken:
    """A worker that is spoken to. handler: what it started; raised: what its `serve` raised."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(60)
        self.handler, self.raised, self.said = Twice(), list[BaseException](), list[Frame]()
        self.thread = threading.Thread(target=self._serve, args=[theirs])
        self.thread.start()

    def _serve(self, theirs: socket.socket) -> None:
        with theirs:
            try:
                FramedHost(HostLink(theirs)).serve()
            except Exception as error:
                self.raised.append(error)

    def send(self, *sent: Frame) -> None:
        self.ours.sendall(b"".join(frame.head + frame.text + frame.body for frame in sent))

    def end(self) -> list[Frame]:
        """All that it says until it ends; nothing more is said to it."""
        self.ours.shutdown(socket.SHUT_WR)
        reader = FrameReader(frames.FROM_WORKER)
        while data := self.ours.recv(1 << 16):
            self.said += reader.frames(data)
        self.thread.join()
        assert reader.between_frames
        return self.said


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spoken]:
    monkeypatch.setattr(FramedHost, "_beat", lambda self: None)  # it ends its process with its host
    one = Spoken()
    monkeypatch.setattr(framed, "answerer", lambda folder, batch_size: one.handler)
    yield one
    one.ours.close()
    one.thread.join()


def batch(*bodies: bytes, flags: int = 0) -> list[Frame]:
    last = len(bodies) - 1
    return [Frame(frames.REQUEST, i, TEXT, body, flags | (frames.MORE if i < last else 0)) for i, body in enumerate(bodies)]


def test_each_of_many_answers_arrives_whole_and_in_order_however_large_one_is(spoken: Spoken) -> None:
    """More parts than the system takes at once, and one that does not fit into the socket."""
    bodies = [b"%d" % i for i in range(600)]
    bodies[300] = bytes(range(256)) * 8192
    listening = threading.Thread(target=spoken.send, args=[START, *batch(*bodies)])
    listening.start()
    listening.join(60)
    answers = [frame for frame in spoken.end() if frame.kind == frames.ANSWER]
    assert [(frame.id, frame.body) for frame in answers] == [(i, 2 * body) for i, body in enumerate(bodies)]
    assert spoken.raised == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (batch(b"x"), "a request before the start"),
        ([START, Frame(frames.SENT, 1)], "a frame for a worker that streams"),
        ([START, Frame(frames.REQUEST, 1, b"a name without a value\0")], "a request whose text cannot be read"),
        ([START, SimpleNamespace(head=b"\2\0\0", text=b"", body=b"")], "half a frame"),
    ],
)
def test_a_host_that_is_confused_ends_its_worker(spoken: Spoken, sent: Any, said: str) -> None:
    spoken.send(*sent)
    spoken.end()
    (error,) = spoken.raised
    assert isinstance(error, BrokenFrame)
    assert str(error) == said


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"version": 2, "batch_size": 8}, b"ValueError: this worker speaks version 1 of the frames, its host 2"),
        ({}, b"KeyError"),
    ],
)
def test_a_host_of_another_version_is_told_why_nothing_starts(spoken: Spoken, about: dict[str, Any], said: bytes) -> None:
    spoken.send(frames.of_json(frames.START, about))
    (failed,) = spoken.end()
    assert failed.kind == frames.FAILED
    assert failed.text.startswith(said)
    assert len(spoken.raised) == 1


def test_a_worker_whose_engine_is_dead_answers_its_batch_says_so_and_takes_no_other(spoken: Spoken) -> None:
    spoken.send(START, *batch(b"a"), *batch(b"b", b"end"), *batch(b"c"))
    said = [(frame.kind, frame.flags, frame.body) for frame in spoken.end()]
    assert said == [
        (frames.STARTED, 0, b""),
        *[(frames.ANSWER, 0, b"aa"), (frames.DONE, 0, b""), (frames.NUMBERS, 0, b"")],
        *[(frames.ANSWER, 0, b"bb"), (frames.ANSWER, 0, b"endend"), (frames.DONE, frames.DEAD, b""), (frames.NUMBERS, 0, b"")],
    ]
    assert spoken.handler.betweens == 1, "what is dead is left alone"


def test_what_fails_between_two_batches_costs_nobody_an_answer(spoken: Spoken) -> None:
    spoken.handler.fails = True
    spoken.send(START, *batch(b"a"), *batch(b"b"))
    said = spoken.end()
    assert [frame.body for frame in said if frame.kind == frames.ANSWER] == [b"aa", b"bb"]
    assert [json.loads(frame.text) for frame in said if frame.kind == frames.NUMBERS] == 2 * [
        {"metrics": [["Seen", 1.0, "", None]]}
    ]
    assert spoken.handler.betweens == 2


def test_a_batch_is_reported_where_its_host_wants_that_before_its_answers(spoken: Spoken) -> None:
    spoken.send(START, *batch(b"a"), *batch(b"b", flags=frames.WATCHED), *batch(b"c", flags=frames.IF_FAILED))
    kinds = [frame.kind for frame in spoken.end() if frame.kind != frames.NUMBERS]
    answered = [frames.ANSWER, frames.DONE]
    assert kinds == [frames.STARTED, *answered, frames.REPORT, *answered, *answered], "nothing has failed in the last one"
    (report,) = [json.loads(frame.text) for frame in spoken.said if frame.kind == frames.REPORT]
    assert (report["total_ms"], report["decode_ms"], report["engine"], report["calls"]) == (3.0, 1.0, "", [])


class Waits(Twice):
    """Answers two requests only once something has happened on its socket. until: what that is, of the link."""

    def __init__(self, until: Callable[[HostLink], Any]) -> None:
        super().__init__()
        self.until, self.began, self.gone = until, threading.Event(), set[int]()
        self.pipeline = SimpleNamespace(gone=set)

    def run(self, requests: Sequence[Request]) -> Any:
        if len(requests) == 2:
            self.began.set()
            link, last = self.pipeline.gone.__self__, time.monotonic() + 30
            while not self.until(link) and time.monotonic() < last:
                self.gone = self.pipeline.gone()
        return super().run(requests)


def test_who_is_cancelled_while_a_batch_runs_is_known_and_what_else_came_is_answered_next(spoken: Spoken) -> None:
    spoken.handler = handler = Waits(lambda link: link.cancelled)
    spoken.send(START, *batch(b"a", b"b"))
    assert handler.began.wait(30)
    spoken.send(Frame(frames.CANCEL, 99), Frame(frames.REQUEST, 7, TEXT, b"c"), Frame(frames.CANCEL, 1))
    said = [(frame.id, frame.body) for frame in spoken.end() if frame.kind == frames.ANSWER]
    assert said == [(0, b"aa"), (1, b"bb"), (7, b"cc")]
    assert handler.gone == {1}
    assert spoken.raised == []


def test_a_host_that_is_confused_while_a_batch_runs_gets_its_answers_before_the_worker_ends(spoken: Spoken) -> None:
    spoken.handler = handler = Waits(lambda link: link.broken)
    spoken.send(START, *batch(b"a", b"b"))
    assert handler.began.wait(30)
    spoken.send(Frame(frames.PIECE, 1))
    assert [frame.body for frame in spoken.end() if frame.kind == frames.ANSWER] == [b"aa", b"bb"]
    assert list(map(type, spoken.raised)) == [BrokenFrame]
