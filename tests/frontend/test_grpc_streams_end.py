"""How a stream of ModelStreamInfer ends: its client goes or does not read, others wait for its place, its server ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc.aio
import pytest

from slotwise.frontend.admission.reading_places import ReadingPlaces
from slotwise.frontend.events import piece_stream
from slotwise.frontend.grpc import call_messages, service
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.grpc.request_stream import LEAVES
from tests.support.grpc_client import streaming as stream_of

from .conftest import Front, MakeFront
from .infer_streams import asked, infer, said, server_of
from .live import LiveFront
from .standin import StandIn
from .streaming import Streaming

pytestmark = pytest.mark.anyio


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front(StandIn(likely=True), max_body_bytes=2**16, in_flight=32)


@pytest.mark.parametrize("cancels", [True, False], ids=["cancels", "closes"])
async def test_a_client_that_goes_frees_its_places(front: Front, streaming: Streaming, cancels: bool) -> None:
    limit = front.gateway.traffic("digits").limit
    async with server_of(front.gateway) as (server, channel):
        call = stream_of(channel, timeout=60)
        for body in ("a wait", "b wait"):
            await call.write(infer(body, body[0]))
        assert {said(await call.read())[0] for _ in range(2)} == {"a", "b"}
        assert limit.running == 2
        await (asyncio.sleep(0, call.cancel()) if cancels else channel.close())
        async with asyncio.timeout(30):
            while limit.running or server.infer_service.under_way or server.infer_service._count:
                await asyncio.sleep(0.01)
    assert len(streaming.gone) == 2
    assert front.gateway.body_memory.now_bytes == 0


async def test_a_client_that_goes_while_its_records_wait_is_no_error(
    make_front: MakeFront, caplog: pytest.LogCaptureFixture
) -> None:
    front = await make_front(StandIn(gate=asyncio.Event()), in_flight=1, queued=8, hedge=False)
    limit = front.gateway.traffic("digits").limit
    async with server_of(front.gateway) as (server, channel):
        call = stream_of(channel, timeout=60)
        await call.write(infer(["a", "b", "c"], "three"))
        async with asyncio.timeout(30):
            while (limit.running, limit.queued) != (1, 1):
                await asyncio.sleep(0.01)
            call.cancel()
            while limit.queued:
                await asyncio.sleep(0.01)
            assert front.server.gate
            front.server.gate.set()
            while server.infer_service.under_way:
                await asyncio.sleep(0.01)
    assert len(front.server.seen) == 1
    assert front.gateway.body_memory.now_bytes == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR" and record.name.startswith("slotwise")]


async def test_streams_that_are_cancelled_leave_the_process_alive(live_front: LiveFront) -> None:
    """Some while a message is read or written, when their context is gone already."""

    calls: list[Any] = []

    async def opened(channel: grpc.aio.Channel) -> None:
        call = stream_of(channel, timeout=60)
        calls.append(call)
        for i in range(random.randrange(6)):
            await call.write(infer(["a" * 1000] * 8, str(i)))
        for _ in range(random.randrange(3)):
            await call.read()

    async with grpc.aio.insecure_channel(live_front.record.grpc) as channel:
        for _ in range(4):
            asked_of = [asyncio.ensure_future(opened(channel)) for _ in range(25)]
            for one in asked_of:
                await asyncio.sleep(random.uniform(0, 0.01))
                one.cancel()
            await asyncio.gather(*asked_of, return_exceptions=True)
        for call in calls:  # else what grpcio hears of them after this test is in the next one's way
            call.cancel()
            await call.code()
        got = await asked(channel, infer("a", "last"))
    assert [one for one, _, _ in got["last"]] == ["last"]
    assert live_front.record.alive()


@pytest.mark.parametrize("most", [piece_stream.MOST_WAITING, 0])  # 0: before the answer's head is sent
async def test_who_does_not_read_is_cut_off(
    front: Front, streaming: Streaming, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(piece_stream, "MOST_WAITING", most)
    async with server_of(front.gateway) as (_, channel):
        call = stream_of(channel, timeout=60)
        await call.write(infer("forever", "silent"))
        async with asyncio.timeout(60):
            while not front.gateway.metrics.registry.get_sample_value("slotwise_cut_off_readers_total", {"model": "digits"}):
                await asyncio.sleep(0.05)
        assert await asked(channel, infer("a", "other")) == {"other": [("other", ["a"], False)]}
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call:
                pass
    assert error.value.code().name == "CANCELLED"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    assert front.gateway.body_memory.now_bytes == 0


async def test_who_does_not_read_whole_answers_is_cut_off(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that does not stream, where no piece is counted."""
    streaming = Streaming()
    monkeypatch.setattr(front.gateway.backend, "answer", streaming.answer)
    monkeypatch.setattr(call_messages, "SEND_S", 1.0)
    async with server_of(front.gateway) as (_, channel):
        call = stream_of(channel, timeout=60)
        for i in range(200):
            writing = asyncio.ensure_future(call.write(infer("a" * 2**15, str(i))))
            await asyncio.wait([writing], timeout=5)
            if not writing.done() or writing.cancelled() or writing.exception():
                break
        assert len(streaming.asked) < 200
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call:
                pass
    assert error.value.code().name == "CANCELLED"
    assert front.gateway.body_memory.now_bytes == 0


async def test_a_stream_that_is_idle_gives_way_where_others_wait(
    front: Front, streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has asked is answered first."""
    monkeypatch.setattr(service, "IDLE_S", 0.0)
    async with server_of(front.gateway) as (server, channel):
        server.infer_service._places = ReadingPlaces(4, 10.0)
        count = 2  # all that one connection may have of them
        calls = [stream_of(channel, timeout=60) for _ in range(count)]
        for call in calls:
            await call.write(infer("a gate b", "waits"))
            assert said(await call.read())[0] == "waits"
        assert await asked(channel, infer("b", "late")) == {"late": [("late", ["b"], False)]}
        rest = [asyncio.ensure_future(call.read()) for call in calls]  # else grpcio drops what is there at the end
        await asyncio.sleep(0)
        streaming.gate.set()
        assert [said(await one)[1] for one in rest] == [["b"]] * count
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        ended, _ = await asyncio.wait(codes, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert [code.result().name for code in ended] == ["UNAVAILABLE"]
        assert not server.infer_service._lingering
        for call in calls:
            call.cancel()


async def test_a_server_that_ends_ends_idle_streams_and_answers_the_rest(front: Front, streaming: Streaming) -> None:
    async with server_of(front.gateway) as (server, channel):
        idle, busy = stream_of(channel, timeout=60), stream_of(channel, timeout=60)
        await idle.write(infer("a", "idle"))
        assert said(await idle.read()) == ("idle", ["a"], False)
        await busy.write(infer("a gate b", "busy"))
        assert said(await busy.read()) == ("busy", ["a"], False)
        stopping = asyncio.ensure_future(server.stop(60))
        with pytest.raises(grpc.aio.AioRpcError, match=LEAVES):
            await idle.read()
        assert not stopping.done()
        rest = asyncio.ensure_future(busy.read())
        await asyncio.sleep(0)
        streaming.gate.set()
        assert said(await rest)[1] == ["b"]
        with pytest.raises(grpc.aio.AioRpcError, match=LEAVES):
            await busy.read()
        await stopping


async def test_who_reads_fast_enough_for_all_that_waits_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever's answer stands behind another one's waits for both."""
    monkeypatch.setattr(call_messages, "SEND_S", 0.2)
    monkeypatch.setattr(call_messages, "SLOWEST_BYTES_A_S", 10)
    messages, got = CallMessages(), list[bytes]()

    class Slow:
        async def write(self, message: bytes) -> None:
            await asyncio.sleep(0.5)
            got.append(message)

    slow: Any = Slow()
    writing = asyncio.create_task(messages.write_to(slow))
    messages.put(b"a piece")
    whole = [asyncio.create_task(messages.put_whole(b"%d" % i * 10)) for i in range(2)]
    await asyncio.wait([*whole, asyncio.create_task(messages.taken())])
    messages.close()
    await writing
    assert (got, messages.untaken, messages.waiting) == ([b"a piece", b"0" * 10, b"1" * 10], 0, 0)
