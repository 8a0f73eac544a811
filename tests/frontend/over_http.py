"""Connections to a gateway of this process, through its own HTTP server, for tests of bytes on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from slotwise.frontend.http.access import Check, Names, model_names
from slotwise.frontend.http.app import build_app
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.http.client_connections import ConnectionLimits, OpenConnections
from slotwise.frontend.http.receiver import Receiver

from .conftest import Front, MakeFront

HEAD = "POST /predictions/digits HTTP/1.1\r\nHost: x\r\n"
Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def connecting(
    front: Front,
    trusted: TrustedProxies = TrustedProxies(),
    checks: Sequence[Check] = (),
    names: Names = model_names,
    **limits: Any,
) -> AsyncIterator[Connect]:
    """Opens a connection to it, from the address that is given. checks: who is let in. names: what is for a model."""
    app = build_app(front.gateway)
    app.names = names
    app.checks.extend(checks)
    config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False)
    config.load()
    connections = OpenConnections(ConnectionLimits(**limits), trusted)
    receiver = partial(Receiver, connections, config=config, server_state=ServerState(), app_state={})
    async with AsyncExitStack() as stack:
        server = await asyncio.get_running_loop().create_server(receiver, "127.0.0.1", 0)
        stack.callback(server.close)

        async def connected(address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            host, port = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
            stack.callback(writer.close)
            return reader, writer

        yield connected


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front(max_body_bytes=500_000)


@pytest.fixture
async def connect(front: Front) -> AsyncIterator[Connect]:
    async with connecting(front) as connect:
        yield connect


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and JSON of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r")[0])
    return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))


def sized(body: bytes) -> bytes:
    """A request whose length is said."""
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(*chunks: bytes) -> bytes:
    """A request in chunks, of which the last is empty."""
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks)
