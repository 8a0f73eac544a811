"""Connections of TLS: those whose handshake is not over are within the limits, too, and no certificate breaks any."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.http import client_connections, handshakes
from slotwise.frontend.http.app import build_app
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.http.handshakes import FrontServer
from slotwise.frontend.serve import Access, http_config
from tests.support.certificates import certificate

from .conftest import Front, MakeFront
from .over_http import answer, anyio_backend, sized

__all__ = ["anyio_backend"]  # the fixture
pytestmark = pytest.mark.anyio
GOOD = sized(b"picture")
ENOUGH_S = 60.0  # for what must come

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return certificate(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def listening(front: Front, pair: Pair, **limits: Any) -> AsyncIterator[FrontServer]:
    """A front over TLS on a free port."""
    access = Access(tls_cert=pair[0], tls_key=pair[1], connections=ConnectionLimits(**limits))
    server = FrontServer(http_config(build_app(front.gateway), front.gateway, access))
    taken = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    async with asyncio.timeout(ENOUGH_S):
        while not server.started:
            await asyncio.sleep(0.01)
    server.port = taken.getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        server.should_exit = True
        await serving


async def silent(server: Any, address: str = "127.0.0.1") -> socket.socket:
    """A client that connects, and says nothing."""
    client = socket.socket()
    client.bind((address, 0))
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
    return client


async def is_over(client: socket.socket) -> bool:
    """Wait until the other side has ended it."""
    async with asyncio.timeout(ENOUGH_S):
        with suppress(ConnectionError):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    return True


async def ask(server: Any, address: str = "127.0.0.1") -> int:
    """The status of one answer; 0 where there is none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(ENOUGH_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, local_addr=(address, 0))
            writer.write(GOOD)
            status = (await answer(reader))[0]
            writer.transport.abort()
            return status
    except (OSError, asyncio.IncompleteReadError):
        return 0


@pytest.mark.parametrize("limits", [{"max_connections_per_address": 3}, {"max_connections": 3}])
async def test_one_that_never_ends_makes_room(
    make_front: MakeFront, pair: Pair, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SILENT_S", "ROOM_EVERY_S"):
        monkeypatch.setattr(client_connections, name, 0.0)
    async with listening(await make_front(), pair, **limits) as server:
        clients = [await silent(server) for _ in range(10)]
        assert await ask(server) == 200
        for client in clients[:7]:
            assert await is_over(client)
        for client in clients:
            client.close()


async def test_one_takes_no_longer_than_a_head(make_front: MakeFront, pair: Pair) -> None:
    async with listening(await make_front(), pair, head_timeout_s=0.3) as server:
        clients = [await silent(server) for _ in range(3)]
        await asyncio.get_running_loop().sock_sendall(clients[0], b"\x16\x03\x01")
        await asyncio.get_running_loop().sock_sendall(clients[1], b"GET / HTTP/1.1\r\n\r\n")
        for client in clients:
            assert await is_over(client)
            client.close()
        server.config.connections.limits = ConnectionLimits()  # a busy machine may take longer than these for one handshake
        assert await ask(server) == 200
        assert server.config.connections._count in (0, 1)


async def test_where_all_are_at_work_a_few_hear_why_and_no_more_are_kept(
    make_front: MakeFront, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connections, "MOST_REFUSED", 1)
    front = await make_front()
    front.server.gate = asyncio.Event()
    async with listening(front, pair, max_connections=1) as server:
        asked = asyncio.create_task(ask(server))
        while not front.server.seen:
            await asyncio.sleep(0.01)
        waits = await silent(server)  # it may hear why, once its handshake is over
        await asyncio.sleep(0.1)
        assert await is_over(await silent(server))
        waits.close()
        await asyncio.sleep(0.1)
        assert await ask(server) == 503
        front.server.gate.set()
        assert await asked == 200


async def test_at_its_end_it_waits_for_none(make_front: MakeFront, pair: Pair) -> None:
    front = await make_front()
    async with asyncio.timeout(ENOUGH_S / 2):  # what is in flight may take longer
        async with listening(front, pair) as server:
            client = await silent(server)
            await asyncio.sleep(0.1)
        assert await is_over(client)
        client.close()


async def test_at_its_end_an_idle_client_is_not_waited_for(make_front: MakeFront, pair: Pair) -> None:
    """It has nothing to read, so it does not hear that TLS ends."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    front = await make_front()
    async with asyncio.timeout(20):  # TLS waits for its end for longer
        async with listening(front, pair) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)  # type: ignore[attr-defined]
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.transport.abort()


async def test_where_no_more_files_may_be_open_it_goes_on_later(
    make_front: MakeFront, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "AGAIN_S", 0.2)
    async with listening(await make_front(), pair) as server:
        (listener,) = server.servers

        class Full:
            """The listening socket, on which nothing can be accepted."""

            tries = 0

            def accept(self) -> Any:
                Full.tries += 1
                if Full.tries < 3:
                    raise OSError(24, "Too many open files")
                return taken.accept()

            def fileno(self) -> int:
                return taken.fileno()

        taken, listener.listening = listener.listening, Full()  # type: ignore[attr-defined]
        assert await ask(server) == 200
        assert Full.tries >= 3


def test_a_certificate_that_changes_while_it_is_read_is_read_again(pair: Pair, tmp_path: Path) -> None:
    """And the one from before goes on meanwhile, whole."""
    cert, key = (tmp_path / name for name in ("cert.pem", "key.pem"))
    for file, of in ((cert, pair[0]), (key, pair[1])):
        file.write_bytes(of.read_bytes())
    files = CertificateFiles(cert, key)
    before = files.context
    other, its_key = certificate(tmp_path, "renewed")
    cert.write_bytes(other.read_bytes())
    assert not files.changed()
    assert files.context is before
    key.write_bytes(its_key.read_bytes())
    assert files.changed()
    assert files.context is not before
    assert not files.changed()
