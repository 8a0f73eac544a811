"""Send MMS a batch's answers so that its front end reads them right.

MMS 1.1.11 decodes the worker's response each time a piece of it arrives, and starts over when something is missing. But
within a slot's status and headers it does not check whether they are complete: a piece that ends there makes it drop the
worker, and every client of the batch gets "Worker died." It happens as soon as a full batch follows smaller ones, because
netty adapts the size of its reads (64 to 65536 bytes) to what came before.

So a response starts with a message of 20 KiB of blanks, which the front end ignores: while it reads them, the size of its
reads grows to the largest, and what follows up to 32 KiB arrives in one piece. A longer response is sent in pieces that end
between two slots or in a body, each only when the one before has been read.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

BLANKS = " " * 20_480  # the longest way to the largest read takes 19.3 kB
PIECE_BYTES = 32_768  # what the kernel hands over at once, and less than netty's largest read
PATIENCE_S = 30.0


class Frame(bytearray):
    """One response, to be sent in harmless pieces."""


def install() -> None:
    """Once in a worker of MMS: from now on it answers in frames. Elsewhere nothing happens."""
    service: Any = sys.modules.get("mms.service")
    encode = getattr(service, "create_predict_response", None)
    if encode is None or hasattr(encode, "frames"):
        return

    def create(ret: Any, req_id_map: Any, message: str, code: int, context: Any = None) -> bytearray:
        padded = message + BLANKS if code == 200 else message  # any other code's message is shown to clients
        return Frame(encode(ret, req_id_map, padded, code, context=context))

    create.frames = True  # type: ignore[attr-defined]
    service.create_predict_response = create
    plain = socket.socket.send

    def send(self: socket.socket, data: Any, flags: int = 0) -> int:
        return send_frame(self, data) if isinstance(data, Frame) else plain(self, data, flags)

    socket.socket.send = send  # type: ignore[assignment, method-assign]


def send_frame(to: socket.socket, frame: Frame) -> int:
    """Send the pieces one after the other, each once the receiver has taken the one before."""
    for piece in pieces(frame):
        deadline = time.monotonic() + PATIENCE_S
        while _unread(to) and time.monotonic() < deadline:
            time.sleep(0.00002)
        to.sendall(piece)
    return len(frame)


def pieces(frame: Frame) -> Iterator[memoryview]:
    """The frame cut so that no piece ends within a slot's ids, status and headers."""
    view, start, heads = memoryview(frame), 0, slot_heads(frame) if len(frame) > PIECE_BYTES else []
    while len(frame) - start > PIECE_BYTES:
        end = start + PIECE_BYTES
        end = next((first for first, last in heads if start < first < end < last), end)
        yield view[start:end]
        start = end
    yield view[start:]


def slot_heads(frame: Frame) -> list[tuple[int, int]]:
    """Where each slot's request id starts and where its body's length starts, in bytes from the frame's start."""
    heads = []
    at = _skip(frame, 4)  # code, message
    while _int(frame, at) != -1:
        first = at
        at = _skip(frame, _skip(frame, at))  # request id, content type
        at = _skip(frame, at + 4)  # status, phrase
        count, at = _int(frame, at), at + 4
        for _ in range(2 * count):  # header names and values
            at = _skip(frame, at)
        heads.append((first, at))
        at = _skip(frame, at)  # body
    return heads


def _int(frame: Frame, at: int) -> int:
    return int(struct.unpack_from("!i", frame, at)[0])


def _skip(frame: Frame, at: int) -> int:
    """The end of the text whose length stands at `at`."""
    return at + 4 + _int(frame, at)


def _unread(to: socket.socket) -> int:
    """Bytes that were sent and that the receiver has not read yet (Linux); 0 where nobody can tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(to.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
