"""What one client may do to the front whatever it asks: heads, silence, slow bodies, requests ahead, connections."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.frontend.http import client_connections, http_protocol
from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.http.read_ahead import end_of_requests
from slotwise.frontend.http.request_head import HeadLimits

from .conftest import Front, MakeFront
from .over_http import HEAD, Connect, answer, anyio_backend, chunked, connecting, sized

__all__ = ["anyio_backend"]  # the fixture
pytestmark = pytest.mark.anyio
GOOD = sized(b"picture")
SHORT_S = 0.3
ENOUGH_S = 60.0  # for what must come


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(client_connections, "SILENT_S", 0.0)
    monkeypatch.setattr(client_connections, "ROOM_EVERY_S", 0.0)
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The server's side of each connection."""
    protocols, usual = list[Any](), http_protocol.GatewayProtocol.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        protocols.append(self)
        usual(self, transport)

    monkeypatch.setattr(http_protocol.GatewayProtocol, "connection_made", connection_made)
    return protocols


async def status_of(connect: Connect, *sent: bytes, address: str = "127.0.0.1", pause_s: float = 0.0) -> int:
    """The status of the answer to what is sent; 0 where the connection ends without one."""
    reader, writer = await connect(address)
    reading = asyncio.create_task(reader.read(2**16))
    with suppress(ConnectionError):
        for part in sent:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
    with suppress(ConnectionError):
        received = await asyncio.wait_for(reading, ENOUGH_S)
        return int(received.split(b" ")[1]) if received else 0
    return 0


async def is_answered(connect: Connect, address: str = "127.0.0.1") -> bool:
    reader, writer = await connect(address)
    async with asyncio.timeout(ENOUGH_S):
        writer.write(GOOD)
        try:
            return (await answer(reader))[0] == 200
        except (asyncio.IncompleteReadError, ConnectionError):
            return False


async def test_a_head_has_a_size_and_a_number_of_lines(make_front: MakeFront) -> None:
    front = await make_front()
    async with connecting(front) as connect:
        lines, long = b"a: b\r\n" * 101, b"a: %b\r\n" % (b"b" * 65536)
        for head in (lines, long):
            for end in (b"\r\n", b""):  # also where it never ends
                assert await status_of(connect, HEAD.encode() + head + end) == 431
        assert await status_of(connect, b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 65536)) == 431
        most = (b"a: b\r\n" * 97) + b"b: %b\r\n" % (b"b" * 60000)
        reader, writer = await connect()
        writer.write(GOOD.replace(b"Host: x\r\n", b"Host: x\r\n" + most))
        assert (await answer(reader))[0] == 200
    async with connecting(front, head=HeadLimits(max_lines=3)) as connect:
        assert await status_of(connect, GOOD.replace(b"Host", b"a: b\r\nb: c\r\nHost")) == 431


async def until_cut_off(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send it again and again."""
    async with asyncio.timeout(ENOUGH_S):
        while not writer.transport.is_closing():
            writer.write(data)
            await asyncio.sleep(0.005)


async def test_header_lines_that_never_end_end_the_connection(make_front: MakeFront) -> None:
    async with connecting(await make_front()) as connect:
        _, writer = await connect()
        writer.write(HEAD.encode())
        await until_cut_off(writer, b"a: %b\r\n" % (b"b" * 8000))


async def test_who_says_nothing_or_not_enough_is_not_waited_for(make_front: MakeFront) -> None:
    async with connecting(await make_front(), head_timeout_s=SHORT_S) as connect:
        assert await status_of(connect) == 0
        assert await status_of(connect, b"\r\n") == 408
        assert await status_of(connect, HEAD.encode()) == 408
        assert await status_of(connect, *[b"GET", b" ", b"/"] * 3, pause_s=SHORT_S / 8) == 408
        reader, writer = await connect()
        for _ in range(2):  # after an answer it may be silent for longer
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
            await asyncio.sleep(2 * SHORT_S)
        writer.write(GOOD[:30])
        assert (await asyncio.wait_for(answer(reader), ENOUGH_S))[0] == 408


async def test_a_body_that_comes_too_slowly_is_not_waited_for(make_front: MakeFront) -> None:
    front = await make_front()
    async with connecting(front, head_timeout_s=SHORT_S, min_body_rate=1000) as connect:
        assert await status_of(connect, sized(b"a" * 1000)[:-500]) == 408
        assert await status_of(connect, sized(b"a" * 1000)[:-999], *[b"a"] * 9, pause_s=SHORT_S / 4) == 408
        assert await status_of(connect, chunked(b"a" * 10)) == 408
        assert front.server.seen == []
        assert front.gateway.body_memory.now_bytes == 0


def test_a_body_at_the_least_rate_is_waited_for() -> None:
    limits = client_connections.ConnectionLimits(head_timeout_s=10, min_body_rate=100)
    pace = client_connections.Pace(since=0.0)
    looks = [(9, 0), (10, 1000), (19, 1000), (21, 2100), (31, 3099)]
    assert [pace.too_slow(now, done, limits) for now, done in looks] == [False, False, False, False, True]
    pace = client_connections.Pace(since=0.0)
    assert not pace.too_slow(60, 0, client_connections.ConnectionLimits(min_body_rate=0))


async def test_a_body_is_waited_for_that_is_not_read_either(make_front: MakeFront) -> None:
    """It was refused early, and the rest never comes."""
    front = await make_front()
    front.gateway.traffic("digits").limit.resize(0, 0)
    async with connecting(front, head_timeout_s=SHORT_S) as connect:
        assert await status_of(connect, sized(b"a" * 1000)[:-500]) == 429


async def test_an_answer_that_nobody_takes_is_dropped(make_front: MakeFront) -> None:
    async with connecting(await make_front(), head_timeout_s=SHORT_S) as connect:
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until_cut_off(writer, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")  # until all buffers between are full


@pytest.mark.parametrize("body", [b"x", b"\r\n\r\n" * 40])
async def test_so_many_requests_may_wait_behind_one(make_front: MakeFront, body: bytes) -> None:
    front = await make_front()
    front.server.gate = asyncio.Event()
    async with connecting(front) as connect:
        reader, writer = await connect()
        writer.write(sized(body) * 17)
        while not front.server.seen:
            await asyncio.sleep(0.01)
        front.server.gate.set()
        assert [(await answer(reader))[0] for _ in range(17)] == [200] * 17


async def test_more_than_so_many_are_refused_after_the_others_are_answered(make_front: MakeFront) -> None:
    front = await make_front()
    front.server.gate = asyncio.Event()
    async with connecting(front) as connect:
        reader, writer = await connect()
        writer.write(GOOD * 2000)
        while not front.server.seen:
            await asyncio.sleep(0.01)
        writer.write(GOOD * 10)
        front.server.gate.set()
        assert [(await answer(reader))[0] for _ in range(18)] == [200] * 17 + [429]
        assert len(front.server.seen) == 17


def test_where_requests_end() -> None:
    one, packed = sized(b"\r\n\r\n" * 9), chunked(b"ab", b"")
    data = bytearray(one + packed + GOOD)
    assert end_of_requests(data, 0) == 0
    assert end_of_requests(data, 1) == len(one)
    assert end_of_requests(data, 2) == len(one + packed)
    assert end_of_requests(data, 3) is None
    for i in range(len(data)):
        assert end_of_requests(data[:i], 2) == (len(one + packed) if i > len(one + packed) + 2 else None)
    assert end_of_requests(bytearray(b"GET / HTTP/1.1\r\n\r\n" * 9), 2) is None  # has no Host, which is said in its turn


async def holding(front: Front, connect: Connect, address: str, count: int) -> list[asyncio.StreamReader]:
    """So many connections, each with a request that the server has in hand."""
    readers, before = [], len(front.server.seen)
    for _ in range(count):
        reader, writer = await connect(address)
        writer.write(GOOD)
        readers.append(reader)
    async with asyncio.timeout(ENOUGH_S):
        while len(front.server.seen) < before + count:
            await asyncio.sleep(0.01)
    return readers


async def test_who_is_idle_makes_room(make_front: MakeFront) -> None:
    for limits in ({"max_connections_per_address": 3}, {"max_connections": 3}):
        async with connecting(await make_front(), **limits) as connect:
            reader, writer = await connect()
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
            for _ in range(10):
                await connect()  # and says nothing
            assert await is_answered(connect)
            writer.write(GOOD)  # has asked something: others went before it
            assert (await answer(reader))[0] == 200


async def test_who_said_something_a_moment_ago_is_no_idler(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next request may be on its way."""
    monkeypatch.setattr(client_connections, "SILENT_S", ENOUGH_S)
    async with connecting(await make_front(), max_connections=2) as connect:
        here = [await connect() for _ in range(2)]
        here[0][1].write(GOOD)
        assert (await answer(here[0][0]))[0] == 200
        assert await status_of(connect) == 503
        for reader, writer in here:
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200


async def test_who_still_takes_its_answer_is_no_idler(make_front: MakeFront, made: list[Any]) -> None:
    """Closed, it would stay open until it has taken all, and count no more."""
    async with connecting(await make_front(), max_connections=1) as connect:
        reader, writer = await connect()
        writer.write(GOOD)
        assert (await answer(reader))[0] == 200
        transport = made[0].transport
        made[0].transport = SimpleNamespace(get_write_buffer_size=lambda: 1, abort=transport.abort)
        assert await status_of(connect) == 503
        made[0].transport = transport
        assert await is_answered(connect)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every look at a connection that might make room; one look serves for the whole test."""
    silent, looks = client_connections.SilentConnections, list[Any]()
    usual = silent.look
    monkeypatch.setattr(client_connections, "ROOM_EVERY_S", 600.0)
    monkeypatch.setattr(silent, "look", lambda self, ones, now: usual(self, (looks.append(one) or one for one in ones), now))
    return looks


async def test_refused_ones_cost_no_look_at_all_the_others_each(make_front: MakeFront, looked_at: list[Any]) -> None:
    """They come in thousands, and those that are not accepted in time hear nothing."""
    front = await make_front(in_flight=100)
    front.server.gate = asyncio.Event()
    async with connecting(front, max_connections=3) as connect:
        readers = await holding(front, connect, "127.0.0.1", 3)
        assert [await status_of(connect) for _ in range(10)] == [503] * 10
        assert len(looked_at) == 3
        front.server.gate.set()
        assert [(await answer(reader))[0] for reader in readers] == [200] * 3


async def test_one_look_finds_several_that_make_room_and_none_that_asks_meanwhile(
    make_front: MakeFront, looked_at: list[Any]
) -> None:
    async with connecting(await make_front(), max_connections=5) as connect:
        here = []
        for _ in range(5):
            here.append(await connect())
            await asyncio.sleep(0.01)  # uvloop counts milliseconds: else the oldest is any of them
        assert await is_answered(connect)  # that one makes room
        for reader, writer in here[1:3]:
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
        here[3][1].close()
        await here[3][1].wait_closed()
        assert await is_answered(connect)
        assert await is_answered(connect)
        for reader, writer in here[1:3]:
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
        assert len(looked_at) == 5


async def test_where_nobody_is_idle_the_new_one_is_refused(make_front: MakeFront) -> None:
    front = await make_front(in_flight=100)
    front.server.gate = asyncio.Event()
    async with connecting(front, max_connections_per_address=3, max_connections=5) as connect:
        readers = await holding(front, connect, "127.0.0.1", 3)
        assert await status_of(connect) == 429
        readers += await holding(front, connect, "127.0.0.2", 2)
        assert await status_of(connect, address="127.0.0.2") == 503
        front.server.gate.set()
        assert [(await answer(reader))[0] for reader in readers] == [200] * 5
        assert await is_answered(connect, "127.0.0.3")


async def test_what_has_come_and_is_not_read_yet_is_no_idlers(make_front: MakeFront, made: list[Any]) -> None:
    async with connecting(await make_front(), max_connections=1) as connect:
        reader, writer = await connect()
        writer.write(GOOD)
        assert (await answer(reader))[0] == 200
        made[0].transport.pause_reading()
        writer.write(GOOD)
        assert await status_of(connect) == 503
        made[0].transport.resume_reading()
        assert (await answer(reader))[0] == 200
        assert await is_answered(connect)


async def test_who_is_not_taken_in_hears_why_while_it_still_sends(make_front: MakeFront) -> None:
    front = await make_front(in_flight=100)
    front.server.gate = asyncio.Event()
    async with connecting(front, max_connections_per_address=1) as connect:
        await holding(front, connect, "127.0.0.1", 1)
        for _ in range(client_connections.MOST_REFUSED):
            reader, writer = await connect()
            await asyncio.sleep(0.01)
            for _ in range(16):
                writer.write(GOOD + b"x" * 65536)
                await writer.drain()
            assert (await answer(reader))[0] == 429
        front.server.gate.set()


async def test_connections_of_a_trusted_proxy_are_many_clients(make_front: MakeFront) -> None:
    front = await make_front(in_flight=100)
    front.server.gate = asyncio.Event()
    async with connecting(front, TrustedProxies(["127.0.0.2"]), max_connections_per_address=1) as connect:
        readers = await holding(front, connect, "127.0.0.2", 4)
        front.server.gate.set()
        assert [(await answer(reader))[0] for reader in readers] == [200] * 4


async def test_nothing_is_kept_of_a_connection_that_is_gone(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[client_connections.OpenConnections] = []
    usual = client_connections.OpenConnections.__init__
    monkeypatch.setattr(
        client_connections.OpenConnections, "__init__", lambda self, *given: (made.append(self), usual(self, *given))[1]
    )
    front = await make_front()
    async with connecting(front) as connect:
        for _ in range(5):
            assert await is_answered(connect)
        _, writer = await connect()
        writer.write(os.urandom(100))
    while made[0]._count or made[0]._by_client or made[0]._looking:
        await asyncio.sleep(0.01)


async def test_what_a_client_has_sent_before_the_end_is_answered(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[http_protocol.GatewayProtocol] = []
    first = http_protocol.GatewayProtocol.connection_made
    monkeypatch.setattr(
        http_protocol.GatewayProtocol, "connection_made", lambda self, transport: made.append(self) or first(self, transport)
    )
    async with connecting(await make_front()) as connect:
        for sent in (b"", GOOD[:30], GOOD):
            reader, writer = await connect()
            writer.write(GOOD)
            assert (await answer(reader))[0] == 200
            os.write(writer.get_extra_info("socket").fileno(), sent)  # at once, and nothing of it is read before the end
            made.pop().shutdown()
            os.write(writer.get_extra_info("socket").fileno(), GOOD[len(sent) :] if sent else b"")
            async with asyncio.timeout(ENOUGH_S):
                assert not sent or (await answer(reader))[0] == 200
                assert await reader.read() == b""
        reader, writer = await connect()
        writer.write(GOOD[:30])
        while not (made and made[0]._head_begun):
            await asyncio.sleep(0.01)
        made[0].shutdown()
        writer.write(GOOD[30:])
        async with asyncio.timeout(ENOUGH_S):
            assert (await answer(reader))[0] == 200
            assert await reader.read() == b""
