"""A worker that speaks the host's frames, and does what a body says: the archive of tests/backends/test_served_model.py."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time

from slotwise.worker.hosts import frames
from slotwise.worker.hosts.framed import HostLink
from slotwise.worker.hosts.frames import Frame

hoard: list[bytes] = []
link = HostLink(socket.socket(fileno=int(sys.argv[1])))


def beat() -> None:
    while True:
        time.sleep(0.2)
        link.send([Frame(frames.BEAT)])


def answer(frame: Frame, body: bytes = b"") -> Frame:
    return Frame(frames.ANSWER, frame.id, frames.answer_text(200, "text/plain", {}), body or b"answer to " + frame.body)


def misbehave(word: bytes, frame: Frame) -> None:
    if word.startswith(b"grow"):
        hoard.append(os.urandom(16 << 20))
    if word == b"exit":
        os._exit(0)
    if word == b"segfault":
        ctypes.string_at(0)
    if word == b"stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == b"slow":
        time.sleep(1)
    if word == b"hang":
        time.sleep(600)
    if word == b"close":
        os.close(link.sock.fileno())
        time.sleep(600)
    if word == b"junk":
        link.sock.sendall(b"\0" * 100)
    if word == b"text":
        link.sock.sendall(b'{"answers": []}\n')
    if word == b"half":
        link.sock.sendall(Frame(frames.ANSWER, frame.id, b"200\n", b"x" * 1000).head)
        os._exit(1)
    if word == b"twice":
        link.send([answer(frame), answer(frame, b"something else")])
    if word == b"unasked":
        link.send([answer(Frame(frames.REQUEST, frame.id + 1_000_000), b"of nobody")])
    if word == b"report":
        link.send([Frame(frames.REPORT, text=b"{}")])
    if word == b"numbers":
        metrics = [["of_400_digits", 10**400, "ms", None], ["too", "few"], None]
        link.send([frames.of_json(frames.NUMBERS, {"metrics": metrics})])
    if word == b"early":
        link.send([Frame(frames.DONE)])
    if word == b"status":
        link.send([Frame(frames.ANSWER, frame.id, b"99\ntext/plain", b"")])


def main() -> None:
    threading.Thread(target=beat, daemon=True).start()
    batch: list[Frame] = []
    for frame in link.frames():
        if frame.kind == frames.START:
            link.send([frames.of_json(frames.STARTED, {"version": frames.VERSION, "engine": "none"})])
            continue
        batch.append(frame)
        if not frame.flags & frames.MORE:
            time.sleep(0.005)
            for one in batch:
                misbehave(one.body, one)
            link.send([*map(answer, batch), Frame(frames.DONE)])
            batch = []


main()
