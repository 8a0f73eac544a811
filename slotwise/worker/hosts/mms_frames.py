"""Send MMS a batch's answers in pieces that its front end reads right, on the connection that the batch came from.

This mends a bug. MMS 1.1.11 decodes the worker's response each time a piece of it arrives, and starts over when something is
missing. But within a slot's status and headers it does not check whether they are complete: where a read ends there, it drops
the worker, and every client of the batch gets "Worker died." That happens as soon as a full batch follows smaller ones, because
netty adapts the size of its reads (64 to 65536 bytes) to what came before.

So a response starts with a message of 20 KiB of blanks, which the front end ignores: while it reads them, the size of its
reads grows to the largest, and what follows up to 32 KiB arrives in one read. A longer response is sent in pieces that end
between two slots or in a body, each only when the one before has been read. All pieces but the last are sent here; the last
one is returned to the server's worker, which sends it as it sends any response. Nothing but MMS's own modules is patched.
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

from slotwise.worker.hosts import codec_check
from slotwise.worker.hosts.codec_check import ServerCode

logger = logging.getLogger(__name__)

# Netty's reads start at 64 bytes or more, and the next size is four steps up its table each time that a read is filled, e.g.
# 80, 144, 208, 272, 336, 400, 464, 1024, 16384 and then 65536 bytes. Before a read that is large enough for all the rest (32768
# bytes or more) they take at most 19,312 bytes together, as here, from whichever size it starts: the blanks are longer.
BLANKS = " " * 20_480
PIECE_BYTES = 32_768  # what the kernel hands over at once, and less than netty's largest read
PATIENCE_S = 30.0
COST = (
    "This costs more than speed: MMS's front end drops a worker whose response it reads in unlucky pieces, as happens when a "
    'full batch follows small ones, and every client of that batch gets "Worker died."'
)


def install() -> bool:
    """Replace two functions in a worker of MMS, between two messages; whether they are replaced afterwards.

    In a process without MMS's modules nothing happens; where something is against it (see codec_check), that is said once in
    the log.
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
    """What replaces `_retrieve_inference_msg` and `create_predict_response`: one learns the connection, the other sends on it.

    MMS's worker reads a batch, answers it and sends the answer before it reads the next, all on one connection.
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
    """Send each piece once the receiver has taken the one before; return the last one, when it may be sent."""
    if len(response) <= PIECE_BYTES:
        return response
    try:
        *first, last = pieces(response)
    except Exception:  # nothing is sent yet: the server sends it as it is
        logger.warning("a response of %d bytes could not be cut into pieces", len(response), exc_info=True)
        return response
    for piece in first:
        to.sendall(piece)
        deadline = time.monotonic() + PATIENCE_S
        while _unread(to) and time.monotonic() < deadline:
            time.sleep(0.00002)
    return last


def pieces(response: bytes | bytearray) -> Iterator[memoryview]:
    """The response cut so that no piece ends within a slot's id, status and headers."""
    view, start, heads = memoryview(response), 0, slot_heads(response) if len(response) > PIECE_BYTES else []
    while len(response) - start > PIECE_BYTES:
        end = start + PIECE_BYTES
        end = next((first for first, last in heads if start < first < end < last), end)
        yield view[start:end]
        start = end
    yield view[start:]


def slot_heads(response: bytes | bytearray) -> list[tuple[int, int]]:
    """Where each slot's request id starts and where its body's length starts, in bytes from the response's start."""
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
    """Encode the sample batch and cut it: what is not as in the server's own message, or None."""
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
    """Bytes that were sent and that the receiver has not read yet (Linux, Unix sockets); 0 where nobody can tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(to.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
