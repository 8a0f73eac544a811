"""A server that is no model server, for tests of what judges servers: a function does what it likes with each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from slotwise.bench.http_connection import Target


@asynccontextmanager
async def serving(answered: Callable[[Any, asyncio.StreamWriter], Awaitable[bool]]) -> AsyncIterator[Target]:
    """answered(a request's JSON, where the answer goes): whether the connection is kept."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = True
        while kept:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            size = int(head.lower().partition(b"content-length: ")[2].split()[0])
            kept = await answered(json.loads(await reader.readexactly(size)), writer)
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {})
