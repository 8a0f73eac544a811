"""A worker that streams and does what a body says: the archive of tests/backends/test_streams.py. A body: WORD or a number."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from slotwise.worker.hosts import frames
from slotwise.worker.hosts.framed import HostLink
from slotwise.worker.hosts.frames import Frame

link = HostLink(socket.socket(fileno=int(sys.argv[1])))
HEAD = frames.answer_text(200, "text/event-stream", {})


def beat() -> None:
    while True:
        time.sleep(0.2)
        link.send([Frame(frames.BEAT)])


def piece(frame: Frame, i: int, data: bytes = b"", text: bytes | None = None) -> Frame:
    begins = HEAD if i == 0 else b""
    body = data or b'{"of": "%b", "i": %d}' % (frame.body, i)
    return Frame(frames.PIECE, frame.id, begins if text is None else text, body, frames.MORE)


def lie(word: bytes, frame: Frame) -> None:
    nobody = Frame(frames.REQUEST, frame.id + 1_000_000)
    if word == b"nobody":
        link.send([piece(nobody, 0)])
    if word == b"nobodys-end":
        link.send([Frame(frames.PIECE, nobody.id)])
    if word == b"after":
        link.send([Frame(frames.PIECE, frame.id), piece(frame, 2)])
    if word == b"twice":
        link.send([piece(frame, 0)])
    if word == b"lines":
        link.send([piece(frame, 2, b"{\n}")])
    if word == b"empty":
        link.send([Frame(frames.PIECE, frame.id, flags=frames.MORE)])
    if word == b"whole":
        link.send([Frame(frames.ANSWER, frame.id, frames.answer_text(200, "text/plain", {}), b"whole")])
    if word == b"status":
        link.send([Frame(frames.PIECE, frame.id, b"99\n", b"{}", frames.MORE)])
    if word == b"done":
        link.send([Frame(frames.DONE)])
    if word == b"dead":  # and its process does not end
        link.send([Frame(frames.DONE, flags=frames.DEAD)])
        time.sleep(600)
    if word == b"exit":
        os._exit(0)
    if word == b"half":
        link.sock.sendall(piece(frame, 2).head)
        os._exit(1)
    if word == b"hang":
        time.sleep(600)


def main() -> None:
    threading.Thread(target=beat, daemon=True).start()
    sent: dict[int, int] = {}
    for frame in link.frames():
        if frame.kind == frames.START:
            link.send([frames.of_json(frames.STARTED, {"version": frames.VERSION, "streams": {"slots": 2}})])
        elif frame.kind == frames.SENT:
            sent[frame.id] = sent.get(frame.id, 0) + 1
        elif frame.kind == frames.REQUEST:
            for i in range(sent.get(frame.id, 0), 2):
                link.send([piece(frame, i, text=HEAD if i in (0, sent.get(frame.id)) else b"")])
            lie(frame.body, frame)
            begins = HEAD if sent.get(frame.id) == 2 else b""
            link.send([piece(frame, 2, text=begins), Frame(frames.PIECE, frame.id)])


main()
