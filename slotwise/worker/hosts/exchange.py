"""Read a batch's requests in large pieces, leave their bodies as they came, and write the answers at once.

The workers of both servers read a request a length and a field at a time: two dozen system calls, longer than a small model
takes for its answer. Here the same fields come out of a buffer. Answers have the same bytes as from the servers' own
encoder, which packs every header of every slot anew; here a text that most slots share is packed once.

Both servers also parse JSON and text before the handler sees them, unless `decode_input_request` says no in their
configuration; a body that is no JSON then ends MMS's worker. Here a body stays bytes, whatever the server was told.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from slotwise.worker.hosts.context import PACKAGES

PIECE_BYTES = 65_536

_int = struct.Struct("!i").pack
_unpack = struct.Struct("!i").unpack


def install(server: str) -> None:
    """Once in a worker, between two messages. server: "torchserve" or "mms"; without its modules nothing happens."""
    package = PACKAGES[server]
    protocol: Any = sys.modules.get(f"{package}.protocol.otf_message_handler")
    service: Any = sys.modules.get(f"{package}.service")
    if not hasattr(protocol, "_retrieve_buffer") or not hasattr(service, "create_predict_response"):
        return
    if not hasattr(protocol._retrieve_buffer, "slotwise"):
        _read_from_a_buffer(protocol)
        _write_at_once(service)


def _read_from_a_buffer(protocol: Any) -> None:
    plain = protocol._retrieve_buffer
    known: Any = None  # a worker has one connection
    read: Any = None

    def retrieve(conn: Any, length: int) -> Any:  # a message's first byte, for one
        nonlocal known, read
        if conn is not known:
            known, read = conn, conn.makefile("rb", PIECE_BYTES).read
        data = read(length) if length > 0 else b""
        return data if len(data) >= length else data + plain(conn, length - len(data))

    def field() -> Any:  # None: the end of a list
        length = _unpack(read(4))[0]
        return read(length) if length >= 0 else None

    def request(conn: Any) -> Any:
        try:
            if (identity := field()) is None:
                return None
            headers = [{"name": name, "value": field()} for name in iter(field, None)]
            parameters = [
                {"name": name.decode(), "contentType": field().decode(), "value": field()} for name in iter(field, None)
            ]
            return {"requestId": identity, "headers": headers, "parameters": parameters}
        except struct.error:  # the server went away: the worker's own way out
            return plain(conn, 1)

    retrieve.slotwise = True  # type: ignore[attr-defined]
    protocol._retrieve_buffer, protocol._retrieve_request = retrieve, request


def _write_at_once(service: Any) -> None:
    plain = service.create_predict_response
    alone = os.environ.get("LOCAL_RANK", "0") == "0"  # elsewhere TorchServe's worker keeps silent

    def create(ret: Any, req_id_map: Any, message: str, code: int, context: Any = None) -> Any:
        if code == 200 and alone and context is not None and all(isinstance(body, bytes) for body in ret):
            return response(ret, req_id_map, message, context)
        return plain(ret, req_id_map, message, code, context=context)

    service.create_predict_response = create


def response(bodies: Sequence[bytes], ids: Mapping[int, str], message: str, context: Any) -> bytes:
    """The servers' message for a batch of answers; slot i's status and headers are what `context` was told."""
    parts = [_int(200), _text(message)]
    for i, identity in ids.items():
        code, phrase = context.get_response_status(i)
        headers, body = context.get_response_headers(i), bodies[i]
        parts += (_sized(identity.encode()), _text(headers.get("content-type", "")), _int(code), _text(phrase or ""))
        parts.append(_int(len(headers)))
        parts += [_text(said) for header in headers.items() for said in header]
        parts += (_int(len(body)), body)
    parts.append(_int(-1))
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return _int(len(data)) + data


@lru_cache(1024)
def _text(said: str) -> bytes:
    return _sized(said.encode())
