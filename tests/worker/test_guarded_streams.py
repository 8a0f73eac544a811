"""A stranger's handler that sends pieces, over frames: what becomes of one request changes nothing for the next one."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.worker.guard import once
from slotwise.worker.guard.intermediate import Intermediate
from slotwise.worker.guard.local_guard import LocalGuard
from slotwise.worker.guard.once import Once
from slotwise.worker.guard.stand_in import StandInContext
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.framed import LISTEN_S, HostLink, as_request
from slotwise.worker.hosts.frames import Frame, FrameReader
from slotwise.worker.streaming import guarded_streams
from slotwise.worker.streaming.guarded_streams import GuardedStreams

Send = Callable[[Any], None]
Theirs = Callable[[str, Send, Any], str]

BOTH = pytest.mark.parametrize("flags", [frames.STREAM, 0], ids=["stream", "whole"])


class Host:
    """A host that asks one worker around theirs: `theirs(body, send, context)`, where send(piece) sends one."""

    def __init__(self, theirs: Theirs, *, steps: bool = False, **terms: Any) -> None:
        self.ours, worker = socket.socketpair()
        self.link, pieces, raw = HostLink(worker), Intermediate(), StandInContext(Path(), 1, {"model": {}})

        def handle(data: Any, context: Any) -> list[str]:
            def send(piece: Any, message: str = "", code: int = 200) -> None:
                pieces.send([piece], context.request_ids, message, code, context)

            return [theirs(bytes(data[0].get("body", b"")).decode(), send, context)]

        guard = Once(handle, raw.metrics, pieces=pieces, steps=steps, together=False, tensors=False, **terms)
        self.local = LocalGuard(guard, raw, None, pieces=True)

    def ask(self, *asked: tuple[str, int]) -> list[list[Frame]]:
        """What the worker says of each request (a body, and flags), then what it says of none: beats and its end."""
        for i, (body, flags) in enumerate(asked):
            self.write(Frame(frames.REQUEST, i + 1, frames.request_text({}, ""), body.encode(), flags))

        def received() -> Iterator[Frame]:
            for frame in self.link.frames():
                yield frame
                if frame.kind == frames.REQUEST and frame.id == len(asked):
                    return

        GuardedStreams(self.local, as_request).serve(self.link, received())
        self.link.sock.close()
        reader, said = FrameReader(frames.FROM_WORKER), list[Frame]()
        while data := self.ours.recv(1 << 16):
            said += reader.frames(data)
        self.ours.close()
        return [[frame for frame in said if frame.id == i] for i in [*range(1, len(asked) + 1), 0]]

    def leave(self, request: int = 1) -> None:
        """The client of this request leaves: the next piece finds it so."""
        self.write(Frame(frames.CANCEL, request))
        time.sleep(2 * LISTEN_S)

    def write(self, frame: Frame) -> None:
        self.ours.sendall(frame.head + frame.text + frame.body)


def end_of(said: list[Frame]) -> tuple[int, str]:
    """The status of an answer, and its text."""
    if said[-1].kind == frames.ANSWER:
        return frames.answer_about(said[-1].text)[0], said[-1].body.decode()
    return 200, "".join(json.loads(frame.body)["text"] for frame in said[:-1])


def happens(body: str, i: int, host: Host, send: Send) -> None:
    """What a body of that name makes happen after piece i."""
    if body == "leaves" and i == 0:
        host.leave()
    if body == "object":
        send(object())


def history(host: Callable[[], Host]) -> Theirs:
    """It forgets at the end of each answer, which on TorchServe always comes."""
    kept: list[str] = []

    def theirs(body: str, send: Send, context: Any) -> str:
        kept.append(body)
        for i in range(3):
            send(f"({'+'.join(kept)})")
            happens(body, i, host(), send)
        kept.clear()
        return "."

    return theirs


def producer(host: Callable[[], Host]) -> Theirs:
    """A streamer that is made once, and filled in a thread for each request: so TorchServe's examples stream."""
    streamer: queue.Queue[str | None] = queue.Queue()

    def generate(body: str) -> None:
        for _ in range(3):
            streamer.put(f"({body})")
        streamer.put(None)

    def theirs(body: str, send: Send, context: Any) -> str:
        thread = threading.Thread(target=generate, args=(body,))
        thread.start()
        for i, text in enumerate(iter(streamer.get, None)):
            send(text)
            happens(body, i, host(), send)
        thread.join()
        return "."

    return theirs


@BOTH
@pytest.mark.parametrize("before", [frames.STREAM, 0], ids=["after-stream", "after-whole"])
@pytest.mark.parametrize("first", ["leaves", "object", "a long one"])
@pytest.mark.parametrize("made", [history, producer])
def test_the_next_client_gets_its_own_whatever_became_of_the_one_before(
    made: Callable[[Callable[[], Host]], Theirs], first: str, before: int, flags: int
) -> None:
    host = Host(made(lambda: host), max_response_bytes=20)
    gone, *own, _ = host.ask((first, before), ("b", flags), ("c", flags))
    assert [end_of(said) for said in own] == [(200, "(b)(b)(b)."), (200, "(c)(c)(c).")]
    if first == "leaves":
        assert (gone[-1].kind, gone[-1].flags) == (frames.PIECE, 0)
        assert len(gone) == (2 if before else 1)
    else:
        assert end_of(gone)[0] == 500


def test_between_two_calls_one_whose_client_has_gone_is_left() -> None:
    calls: list[str] = []

    def theirs(body: str, send: Send, context: Any) -> str:
        calls.append(body)
        context.stopping_criteria = [lambda answer: answer == "b"]
        if body == "a":
            host.leave()
        return body or "more"

    host = Host(theirs, steps=True)
    gone, own, _ = host.ask(("a", frames.STREAM), ("b", frames.STREAM))
    assert calls == ["a", "b"]
    assert [(frame.kind, frame.flags) for frame in gone] == [(frames.PIECE, 0)]
    assert end_of(own) == (200, "b")


@BOTH
@pytest.mark.parametrize(
    ("body", "pieces", "status", "message"),
    [
        ("400", 0, 400, "too long"),
        ("a b 413 c", 2, 413, "too long"),
        ("a 302 b", 1, 500, "too long"),
        ("429 fail", 0, 429, "too long"),
        ("a object 400", 1, 500, "the handler's answer cannot be sent"),
    ],
)
def test_a_piece_with_another_code_than_200_is_its_requests_error(
    body: str, pieces: int, status: int, message: str, flags: int
) -> None:
    def theirs(body: str, send: Send, context: Any) -> str:
        for word in body.split():
            if word == "fail":
                raise ValueError
            if word.isdigit():
                send("part", "too long", int(word))
            else:
                send(object() if word == "object" else word)
        return "."

    failed, own, _ = Host(theirs).ask((body, flags), ("a", flags))
    assert [frame.kind for frame in failed[:-1]] == [frames.PIECE] * (pieces if flags else 0)
    code, text = end_of(failed)
    assert (code, json.loads(text)["error"]) == (status, {"code": status, "message": message})
    assert end_of(own) == (200, "a.")


@pytest.mark.parametrize(("body", "status"), [("a b 413", 413), ("a b fail", 500), ("a b status", 409)])
def test_in_another_worker_an_error_after_what_was_sent_is_the_same_error(body: str, status: int) -> None:
    def theirs(body: str, send: Send, context: Any) -> str:
        for word in body.split():
            if word == "fail":
                raise ValueError
            if word == "status":
                context.set_response_status(409, "no", 0)
                return "a conflict"
            send(word, *(("too long", int(word)) if word.isdigit() else ()))
        return "."

    host, again = Host(theirs), Host(theirs)
    first, _ = host.ask((body, frames.STREAM))
    for piece in first[:-1]:
        again.write(Frame(frames.SENT, 1, body=piece.body))
    second, _ = again.ask((body, frames.STREAM))
    assert [frame.kind for frame in first[:-1]] == [frames.PIECE] * 2
    assert (end_of(second), end_of(second)[0]) == (end_of(first), status)


@pytest.mark.parametrize("steps", [False, True], ids=["pieces", "steps"])
def test_a_whole_answer_in_pieces_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch, steps: bool) -> None:
    """Each piece may take `responseTimeout`; who hears nothing for so long ends the worker, and accuses the body."""
    clock = _clock(monkeypatch)

    def theirs(body: str, send: Send, context: Any) -> str:
        if steps:
            context.stopping_criteria = [lambda answer: clock[0] > 5]
        for _ in range(1 if steps else 5):
            clock[0] += 1.1
            if not steps:
                send("a")
        return "b"

    said, beats = Host(theirs, steps=steps).ask(("x", 0))
    assert end_of(said) == (200, "bbbbb" if steps else "aaaaab")
    assert [(frame.kind, frame.flags) for frame in beats] == [(frames.BEAT, frames.TURN)] * (4 if steps else 5)


@BOTH
def test_one_whose_client_has_gone_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    clock = _clock(monkeypatch)

    def theirs(body: str, send: Send, context: Any) -> str:
        host.leave()
        for _ in range(5):
            clock[0] += 1.1
            send("a")
        return "b"

    host = Host(theirs, max_response_bytes=3)
    said, beats = host.ask(("x", flags))
    assert [(frame.kind, frame.flags) for frame in said] == [(frames.PIECE, 0)]
    assert len(beats) == 3  # one that would have no end is not kept for nobody


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the worker's beats, to be moved by hand."""
    clock = [0.0]
    monkeypatch.setattr(guarded_streams, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


@BOTH
@pytest.mark.parametrize("body", ["a", "", "leaves"])
def test_a_request_that_ends_the_device_is_in_hand_when_its_worker_ends(
    monkeypatch: pytest.MonkeyPatch, body: str, flags: int
) -> None:
    """Whom nobody has in hand then nobody accuses, and it ends one worker after the other."""
    monkeypatch.setattr(once, "device_alive", lambda: False)

    def theirs(body: str, send: Send, context: Any) -> str:
        if body == "leaves":
            host.leave()
        if body:
            send("a")
        raise RuntimeError("CUDA error: device-side assert triggered")

    host = Host(theirs)
    said, rest = host.ask((body, flags))
    assert [frame.flags for frame in said] == [frames.MORE] * (body == "a" and bool(flags))
    assert [(frame.kind, frame.flags) for frame in rest] == [(frames.DONE, frames.DEAD)]
