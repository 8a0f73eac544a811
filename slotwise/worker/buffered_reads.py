"""Read a batch's requests in large pieces, and leave their bodies as they came.

The workers of both servers read a request a length and a field at a time: two dozen system calls, longer than a small model
takes for its answer. Here the same fields come out of a buffer.

Both also parse JSON and text before the handler sees them, unless `decode_input_request` says no in the server's
configuration; a body that is no JSON then ends MMS's worker. Here a body stays bytes, whatever the server was told.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

PIECE_BYTES = 65_536


def install(server: str) -> None:
    """Once in a worker, between two messages. server: "torchserve" or "mms"; where its reader is not found nothing happens."""
    package = "ts" if server == "torchserve" else "mms"
    protocol: Any = sys.modules.get(f"{package}.protocol.otf_message_handler")
    plain = getattr(protocol, "_retrieve_buffer", None)
    if plain is None or hasattr(plain, "buffered"):
        return
    unpack = struct.Struct("!i").unpack
    known: Any = None  # a worker has one connection
    read: Any = None

    def retrieve(conn: Any, length: int) -> Any:  # a message's first byte, for one
        nonlocal known, read
        if conn is not known:
            known, read = conn, conn.makefile("rb", PIECE_BYTES).read
        data = read(length) if length > 0 else b""
        return data if len(data) >= length else data + plain(conn, length - len(data))

    def field() -> Any:  # None: the end of a list
        length = unpack(read(4))[0]
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

    retrieve.buffered = True  # type: ignore[attr-defined]
    protocol._retrieve_buffer, protocol._retrieve_request = retrieve, request
