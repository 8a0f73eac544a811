"""Read a batch's requests in large pieces.

The workers of both servers read a request a field at a time and a length at a time: two dozen system calls, longer than a
small model takes for its answer. Here the same fields come out of a buffer. Nothing else changes: not what is read, not
when the worker waits, not what happens when the server goes away.
"""

from __future__ import annotations

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
    known: Any = None  # a worker has one connection
    read: Any = None

    def retrieve(conn: Any, length: int) -> Any:
        nonlocal known, read
        if conn is not known:
            known, read = conn, conn.makefile("rb", PIECE_BYTES).read
        data = read(length) if length > 0 else b""
        return data if len(data) >= length else data + plain(conn, length - len(data))  # the end: the server's own way out

    retrieve.buffered = True  # type: ignore[attr-defined]
    protocol._retrieve_buffer = retrieve
