"""Send a batch's answers to MMS in pieces that its front end reads correctly.

This works around a bug of MMS 1.1.11. Its front end decodes the worker's response each time a part of it arrives, and starts
over when something is missing. But it does not notice that a slot's status and headers are incomplete. Where a read ends among
them, it drops the worker, and every client of the batch gets "Worker died." This happens when a full batch follows smaller
ones, because netty adapts the size of its reads (64 to 65536 bytes) to what it has read before.

So a response starts with 20 KiB of blanks in a field that the front end ignores. While it reads them, its reads grow to the
largest size, and up to 32 KiB after them arrive in one read. A longer response is sent in pieces that end between two slots or
within a body, each piece only when the one before it has been read. All pieces but the last are sent here, on the connection
that the batch came from. The last piece is returned to the server's worker, which sends it as it sends any response. Only
MMS's own modules are patched.
"""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

from slotwise.worker.hosts.java import codec_check
from slotwise.worker.hosts.java.codec_check import ServerCode

logger = logging.getLogger(__name__)

# Each time netty fills a read, its next read is four steps further in a table of sizes. From its smallest sizes on that may be
# 80, 144, 208, 272, 336, 400, 464, 1024, 16384 and then 65536 bytes. The reads before the first that is large enough for a
# whole piece (32768 bytes or more) take at most 19,312 bytes together, wherever netty starts in it: less than the blanks.
BLANKS = " " * 20_480
PIECE_BYTES = 32_768  # what the kernel hands over at once, and less than netty's largest read
PATIENCE_S = 30.0
COST = (
    "This costs more than speed: MMS's front end drops a worker whose response it reads in unlucky pieces, as happens when a "
    'full batch follows small ones, and every client of that batch gets "Worker died."'
)


def install() -> bool:
    """Replace two functions in a worker of MMS. Returns whether they are replaced.

    To be called between two messages. In a process without MMS's modules nothing happens. Where something speaks against it
    (see codec_check), that is logged once.
    """
    code = codec_check.server_code("mms")
    if code is None:
        return False
    if hasattr(code.service.create_predict_response, "frames"):
        return True
    if why := (codec_check.objection(code) or difference(code)):
        codec_check.decline("The sending of MMS's responses in safe pieces", why, COST)
        return False
    protocol, service = code.protocol, code.service
    protocol._retrieve_inference_msg, service.create_predict_response = framing(
        protocol._retrieve_inference_msg, service.create_predict_response
    )
    return True


def framing(read: Callable[[Any], Any], encode: Callable[..., Any]) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """The functions that replace `_retrieve_inference_msg` and `create_predict_response`.

    The first remembers the connection that a batch comes from, and the second sends on it. MMS's worker reads a batch, answers
    it and sends the answer before it reads the next, all on one connection.
    """
    connection: socket.socket | None = None

    def remember(conn: Any) -> Any:
        nonlocal connection
        connection = conn
        return read(conn)

    def create(ret: Any, req_id_map: Any, message: str, code: int, context: Any = None) -> Any:
        padded = message + BLANKS if code == 200 else message  # any other code's message is shown to clients
        response = encode(ret, req_id_map, padded, code, context=context)
        return response if connection is None else send_all_but_last(connection, response)

    create.frames = True  # type: ignore[attr-defined]
    return remember, create


def send_all_but_last(to: socket.socket, response: bytes | bytearray) -> bytes | bytearray | memoryview:
    """Send every piece but the last, each when the receiver has read the one before. Returns the last one, for the caller."""
    if len(response) <= PIECE_BYTES:
        return response
    try:
        *first, last = pieces(response)
    except Exception:  # nothing has been sent yet, so the server sends the response as it is
        logger.warning("a response of %d bytes could not be cut into pieces", len(response), exc_info=True)
        return response
    for piece in first:
        to.sendall(piece)
        deadline = time.monotonic() + PATIENCE_S
        while _unread(to) and time.monotonic() < deadline:
            time.sleep(0.00002)
    return last


def pieces(response: bytes | bytearray) -> Iterator[memoryview]:
    """Cut the response into pieces of at most PIECE_BYTES. None of them ends within a slot's id, status and headers."""
    view = memoryview(response)
    heads = slot_heads(response) if len(response) > PIECE_BYTES else []
    start = 0
    while len(response) - start > PIECE_BYTES:
        end = start + PIECE_BYTES
        for first, last in heads:
            if start < first < end < last:  # the piece would end within this slot's head: it ends before it
                end = first
                break
        yield view[start:end]
        start = end
    yield view[start:]


def slot_heads(response: bytes | bytearray) -> list[tuple[int, int]]:
    """The place of each slot's id, status and headers: from the start of its id to the start of its body's length.

    Both in bytes from the response's start.
    """
    heads = []
    at = _skip(response, 4)  # code, message
    while _int(response, at) != -1:
        first = at
        at = _skip(response, _skip(response, at))  # request id, content type
        at = _skip(response, at + 4)  # status, phrase
        count, at = _int(response, at), at + 4
        for _ in range(2 * count):  # header names and values
            at = _skip(response, at)
        heads.append((first, at))
        at = _skip(response, at)  # body
    return heads


def difference(code: ServerCode) -> str | None:
    """Encode the sample batch and cut it. Returns what differs from the server's own message, or None."""
    ids, bodies, message = codec_check.IDS, codec_check.BODIES, codec_check.MESSAGE
    try:
        plain = code.protocol.create_predict_response(bodies, ids, message, 200, context=codec_check.sample_context(code))
        encode = framing(code.protocol._retrieve_inference_msg, code.service.create_predict_response)[1]
        ours = encode(bodies, ids, message, 200, context=codec_check.sample_context(code))
        start = len(message.encode()) + 8
        if ours != plain[:4] + codec_check.text((message + BLANKS).encode()) + plain[start:]:
            return "the server writes another message for the sample batch"
        starts = [ours.index(codec_check.text(identity.encode())) for identity in ids.values()]
        ends = [*starts[1:], len(ours) - 4]
        heads = [(first, end - len(body) - 4) for first, end, body in zip(starts, ends, bodies, strict=True)]
        if slot_heads(ours) != heads or b"".join(pieces(ours)) != ours:
            return "the sample batch cannot be cut where its slots begin"
    except (Exception, SystemExit) as error:
        return f"the sample batch failed with {error!r}"
    return None


def _int(response: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("!i", response, at)[0])


def _skip(response: bytes | bytearray, at: int) -> int:
    """The end of the text whose length stands at `at`."""
    return at + 4 + _int(response, at)


def _unread(to: socket.socket) -> int:
    """How many bytes the receiver has not read yet (Linux, Unix sockets); 0 where the system does not tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(to.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
