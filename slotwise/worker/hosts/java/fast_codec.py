"""Read and write the messages between a server's front end and its worker faster than the server's own code does.

Reading: both servers' workers read a request one length and one field at a time. That is two dozen system calls, which take
longer than a small model takes for its answer. Here the same fields are read out of a buffer of 64 KiB.

Writing: both servers pack every header of every slot again. Here a text that was packed before is reused.

Two things differ from the servers' own code on purpose. A body stays bytes: the servers parse JSON and text unless
`decode_input_request` is false, and then a body that is not JSON ends MMS's worker. And a content type or a status phrase that
is not ASCII gets its length in bytes, where the servers write its length in characters and so spoil the whole message.

Some answers are left to the server's own code: bodies that are not bytes, the error of a whole batch, and what a handler of
TorchServe streams (`send_intermediate_predict_response`, `context.stopping_criteria`).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from slotwise.worker.hosts.java import codec_check
from slotwise.worker.hosts.java.codec_check import ServerCode

BUFFER_BYTES = 65_536
COST = "Only speed is lost: the server's own code reads and writes the messages."
PARSED = (
    "The server's own code reads and writes the messages: slower, and it parses JSON and text before the handler sees them (on "
    "MMS a body that is no JSON then ends the worker) unless decode_input_request=false stands in the server's configuration."
)
STREAMED = "ts_stream_next"  # the header by which TorchServe tells its front end whether more of an answer follows

_int = struct.Struct("!i").pack
_unpack = struct.Struct("!i").unpack


def install(server: str) -> bool:
    """Replace the server's own functions in this worker. Returns whether they are replaced.

    server: "torchserve" or "mms". To be called between two messages. In a process without that server's modules nothing
    happens. Where something speaks against it (see codec_check), that is logged once.
    """
    code = codec_check.server_code(server)
    if code is None:
        return False
    if hasattr(code.protocol._retrieve_buffer, "slotwise"):
        return True
    if why := (codec_check.objection(code) or difference(code)):
        parses = os.environ.get(f"{code.package.__name__.upper()}_DECODE_INPUT_REQUEST") in (None, "true")
        codec_check.decline("The fast message codec", why, PARSED if parses else COST)
        return False
    protocol, service = code.protocol, code.service
    protocol._retrieve_buffer, protocol._retrieve_request = reader(protocol._retrieve_buffer)
    service.create_predict_response = writer(service.create_predict_response)
    return True


def difference(code: ServerCode) -> str | None:
    """Read and write the sample batch with the server's own code and with ours. Returns what differs, or None."""
    batch = codec_check.BODIES, codec_check.IDS, codec_check.MESSAGE
    try:
        theirs = code.service.create_predict_response(*batch, 200, context=codec_check.sample_context(code))
        if theirs != response(*batch, codec_check.sample_context(code)):
            return "the server writes another message for the sample batch"
        buffer, request = reader(code.protocol._retrieve_buffer)
        read = _read_sample(code.protocol._retrieve_buffer, code.protocol._retrieve_inference_msg)
        if read != _read_sample(buffer, lambda conn: list(iter(lambda: request(conn), None))):
            return "the server reads the sample batch in another way"
    except (Exception, SystemExit) as error:  # TorchServe's own code exits where there are no more bytes
        return f"the sample batch failed with {error!r}"
    return None


def _read_sample(buffer: Callable[[Any, int], Any], requests: Callable[[Any], Any]) -> tuple[Any, Any]:
    front_end, worker = socket.socketpair()
    with front_end, worker:
        front_end.sendall(codec_check.sample_request())
        front_end.shutdown(socket.SHUT_WR)  # code that reads too far gets an end, and does not wait for ever
        return buffer(worker, 1), requests(worker)


def reader(plain: Callable[[Any, int], Any]) -> tuple[Callable[[Any, int], Any], Callable[[Any], Any]]:
    """The functions that replace `_retrieve_buffer` and `_retrieve_request`; they share one buffer.

    plain: the server's own `_retrieve_buffer`.
    """
    known: Any = None  # the connection that `read` reads from; a worker has one
    read: Any = None

    def buffer(conn: Any, length: int) -> Any:  # the server's own code reads a message's first byte by it
        nonlocal known, read
        if conn is not known:
            known, read = conn, conn.makefile("rb", BUFFER_BYTES).read
        data = read(length) if length > 0 else b""
        return data if len(data) >= length else data + plain(conn, length - len(data))

    def field() -> bytes | None:  # None: the end of a list
        length = _unpack(read(4))[0]
        if length > 0:
            return read(length)  # type: ignore[no-any-return]
        return None if length == -1 else b""

    def word() -> str | None:
        length = _unpack(read(4))[0]
        if length <= 0:
            return None if length == -1 else ""
        data = read(length)
        if len(data) < length:  # half a character must fail as an end of the connection does, not as bad UTF-8
            raise struct.error("the connection ended within a word")
        return data.decode()  # type: ignore[no-any-return]

    def request(conn: Any) -> Any:
        try:
            if (identity := field()) is None:
                return None
            headers = [{"name": name, "value": field() or b""} for name in iter(field, None)]
            parameters = [{"name": name, "contentType": word() or "", "value": field() or b""} for name in iter(word, None)]
            return {"requestId": identity, "headers": headers, "parameters": parameters}
        except struct.error:  # the server went away: the worker's own way out
            return plain(conn, 1)

    buffer.slotwise = True  # type: ignore[attr-defined]
    return buffer, request


def writer(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function that replaces `create_predict_response`. plain: the server's own."""

    def create(ret: Any, req_id_map: Any, message: str, code: int, context: Any = None) -> Any:
        written = None
        if code == 200 and context is not None and not getattr(context, "stopping_criteria", None):
            try:
                written = response(ret, req_id_map, message, context)
            except Exception:  # something odd: the server's own code decides what becomes of it
                written = None
        return plain(ret, req_id_map, message, code, context=context) if written is None else written

    return create


def response(bodies: Sequence[bytes], ids: Mapping[int, str], message: str, context: Any) -> bytes | None:
    """The servers' message for a batch of answers; slot i's status and headers come from `context`.

    None where a body is not bytes or an answer is part of a stream, so that the server's own code has to write it.
    """
    parts = [_int(200), _text(message)]
    for i, identity in ids.items():
        code, phrase = context.get_response_status(i)
        headers, body = context.get_response_headers(i), bodies[i]
        if STREAMED in headers or not isinstance(body, bytes):
            return None
        parts += (_sized(identity.encode()), _text(headers.get("content-type", "")), _int(code), _text(phrase or ""))
        parts.append(_int(len(headers)))
        parts += [_text(value) for header in headers.items() for value in header]
        parts += (_int(len(body)), body)
    parts.append(_int(-1))
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return _int(len(data)) + data


@lru_cache(1024)
def _text(value: str) -> bytes:
    return _sized(value.encode())
