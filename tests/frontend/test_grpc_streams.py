"""ModelStreamInfer: many requests on one call, each answered by its own id, whole or piece by piece."""

from __future__ import annotations

import asyncio
import json
import queue
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.admission.reading_places import ReadingPlaces
from slotwise.frontend.events import piece_stream
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc import call_messages, service
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.grpc.infer_stream import LEAVES, LONGEST_ID, MOST_AT_ONCE, NO_SEQUENCE
from slotwise.frontend.grpc.message_table import text_field
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.grpc.server import GrpcServer
from slotwise.frontend.http.client_connections import ConnectionLimits
from tests.support.grpc_client import streaming as stream_of

from .conftest import Front, MakeFront
from .live import LiveFront
from .standin import StandIn
from .streaming import Streaming

pytestmark = pytest.mark.anyio


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front(StandIn(likely=True), max_body_bytes=2**16, in_flight=32)


@asynccontextmanager
async def server_of(gateway: Gateway, **limits: Any) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    """A gRPC port, and a channel to it."""
    server = GrpcServer(gateway, "127.0.0.1", 0, limits=ConnectionLimits(**limits))
    await server.bind()
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield server, channel
    finally:
        await server.stop(None)


def infer(text: str | bytes | list[str], identity: str = "", model: str = "digits", **parameters: Any) -> Any:
    """A ModelInferRequest of texts."""
    texts = text if isinstance(text, list) else [text]
    elements = [one.encode() if isinstance(one, str) else one for one in texts]
    raw = b"".join(struct.pack("<I", len(one)) + one for one in elements)
    message = CLASSES["ModelInferRequest"](model_name=model, id=identity, raw_input_contents=[raw])
    message.inputs.add(name="x", datatype="BYTES", shape=[len(texts)])
    message.outputs.add(name="answer")
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(message.parameters[name], kind, value)
    return message


Said = tuple[str, list[str], bool]  # id, what its answer or its error is, whether it is its last


def said(response: Any) -> Said:
    answer = response.infer_response
    texts = []
    for raw in answer.raw_output_contents[:1]:
        while raw:
            (size,) = struct.unpack_from("<I", raw)
            texts.append(raw[4 : 4 + size].decode())
            raw = raw[4 + size :]
    if response.error_message:
        code = json.loads(answer.parameters["errors"].string_param)["0"]["code"]
        texts = [f"{code} {response.error_message}"]
    return answer.id, texts, answer.parameters["triton_final_response"].bool_param


async def asked(channel: grpc.aio.Channel, *requests: Any, **metadata: str) -> dict[str, list[Said]]:
    """What each id was answered."""
    given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    got: dict[str, list[Said]] = {}
    async for response in stream_of(channel, request_iterator=iter(requests), metadata=given, timeout=60):
        got.setdefault(response.infer_response.id, []).append(said(response))
    return got


async def test_pieces_come_in_their_order_and_the_end_to_who_wants_it(front: Front, streaming: Streaming) -> None:
    async with server_of(front.gateway) as (_, channel):
        got = await asked(
            channel,
            infer('a b {"n":7}', "one", triton_enable_empty_final_response=True),
            infer("c", "two"),
            infer("", "none", triton_enable_empty_final_response=True),
            infer(["d", "e"], "batch"),
        )
    assert got == {
        "one": [("one", ["a"], False), ("one", ["b"], False), ("one", ['{"n":7}'], False), ("one", [], True)],
        "two": [("two", ["c"], False)],
        "none": [("none", [], True)],
        "batch": [("batch", ["d", "e"], True)],
    }
    assert front.gateway.body_memory.now_bytes == 0
    assert len({request.identity for request in streaming.asked}) == 5


async def test_an_error_is_its_own_and_ends_nobody_else(front: Front, streaming: Streaming) -> None:
    async with server_of(front.gateway) as (_, channel):
        got = await asked(
            channel,
            infer("a " * 300, "long"),
            infer("!503", "early"),
            infer("b ?422 c", "late"),
            infer("a", "nobody", model="../x"),
            infer("a", "sequence", sequence_id="7"),
            infer("a", "x" * (LONGEST_ID + 1)),
            b"\xff" * 20,
            infer("d", "good"),
        )
    assert got.pop("long") == [("long", ["a"], False)] * 300
    assert got.pop("x" * LONGEST_ID)[0][1][0].startswith("400 ")
    ((_, no_message, last),) = got.pop("")
    assert (no_message[0][:4], last) == ("400 ", True)
    ((_, nobody, _),) = got.pop("nobody")
    assert nobody[0].startswith("404 ")
    assert got == {
        "early": [("early", ["503 on purpose"], True)],
        "late": [("late", ["b"], False), ("late", ["422 its own"], True)],
        "sequence": [("sequence", [f"400 {NO_SEQUENCE}"], True)],
        "good": [("good", ["d"], False)],
    }
    assert front.gateway.body_memory.now_bytes == 0


async def test_a_message_over_the_limit_ends_the_call(front: Front, streaming: Streaming) -> None:
    """By gRPC itself, which reads none of it."""
    async with server_of(front.gateway) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asked(channel, infer("wait", "waits"), infer("a" * 2**16, "large"))
        assert error.value.code().name == "RESOURCE_EXHAUSTED"
        async with asyncio.timeout(30):
            while not streaming.gone:
                await asyncio.sleep(0.01)
    assert front.gateway.body_memory.now_bytes == 0


async def test_a_model_that_does_not_stream_gives_one_response(front: Front) -> None:
    async with server_of(front.gateway) as (_, channel):
        got = await asked(
            channel, infer(b"\x89PNG picture" * 10, "one"), infer(["no picture"] * 2, "two"), infer("no picture", "three")
        )
    ((_, (answer,), final),) = got["one"]
    assert (json.loads(answer)["label"], final) == ("7", True)
    assert got["two"] == [("two", ["", ""], True)]
    assert got["three"] == [("three", ["400 the body is not a picture"], True)]
    assert front.gateway.body_memory.now_bytes == 0


async def test_requests_of_one_call_are_answered_side_by_side_up_to_a_bound(front: Front, streaming: Streaming) -> None:
    async with server_of(front.gateway) as (_, channel):
        call = stream_of(channel, timeout=60)
        for i in range(MOST_AT_ONCE + 4):
            await call.write(infer("a gate b", str(i)))
        first = [said(await call.read())[0] for _ in range(MOST_AT_ONCE)]
        assert sorted(first, key=int) == [str(i) for i in range(MOST_AT_ONCE)]
        await asyncio.sleep(0.05)
        assert len(streaming.asked) == MOST_AT_ONCE
        streaming.gate.set()
        rest = [said(await call.read())[:2] for _ in range(MOST_AT_ONCE + 8)]
        assert sorted(one for one, texts in rest if texts == ["b"]) == sorted(str(i) for i in range(MOST_AT_ONCE + 4))
        assert [one for one, texts in rest if texts == ["a"]] == [str(MOST_AT_ONCE + i) for i in range(4)]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    assert front.gateway.body_memory.now_bytes == 0


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

    async def opened(channel: grpc.aio.Channel) -> None:
        call = stream_of(channel, timeout=60)
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
        got = await asked(channel, infer("a", "last"))
    assert [one for one, _, _ in got["last"]] == ["last"]
    assert live_front.record.alive()


async def test_tritons_own_client_streams(front: Front, streaming: Streaming) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def asks(address: str) -> list[Any]:
        tensor = triton.InferInput("x", [1], "BYTES")
        with triton.InferenceServerClient(address) as client:
            client.start_stream(lambda result, error: got.put((result, error)))
            for identity, text in (("one", b"a b"), ("two", b"c ?422")):
                tensor.set_data_from_numpy(np.array([text], dtype=np.object_))
                client.async_stream_infer("digits", [tensor], request_id=identity, enable_empty_final_response=True)
            came = [got.get(timeout=60) for _ in range(5)]
            client.stop_stream()
        return came

    async with server_of(front.gateway) as (server, _):
        came = await asyncio.to_thread(asks, f"127.0.0.1:{server.port}")
    answers = [result.get_response() for result, _ in came if result]
    assert [(one.id, one.parameters["triton_final_response"].bool_param) for one in answers if one.id == "one"] == [
        ("one", False),
        ("one", False),
        ("one", True),
    ]
    pieces = [result.as_numpy("answer") for result, _ in came if result and result.get_response().id == "one"]
    assert [piece.tolist() for piece in pieces if piece is not None] == [[b"a"], [b"b"]]
    assert [error.message() for _, error in came if error] == ["its own"]


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


async def test_each_request_needs_the_key_and_has_its_deadline(
    front: Front, streaming: Streaming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = keys.add(tmp_path / "keys.json", "mine")
    narrow = keys.add(tmp_path / "keys.json", "narrow", ("captions",))
    front.gateway.keys = KeyFile(tmp_path / "keys.json")
    async with server_of(front.gateway) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asked(channel, infer("a", "one"))
        assert error.value.code().name == "UNAUTHENTICATED"
        assert (await asked(channel, infer("a", "one"), x_api_key=mine))["one"] == [("one", ["a"], False)]
        assert (await asked(channel, infer("a", "one"), x_api_key=narrow))["one"][0][1][0].startswith("403 ")
        monkeypatch.undo()
        late = await asked(channel, infer("a", "one"), x_api_key=mine, x_deadline_ms="1")
        assert late["one"][0][1][0].startswith("504 ")


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


def test_the_id_is_found_in_what_is_no_message(anyio_backend: str) -> None:
    whole = infer("a", "mine").SerializeToString()
    assert text_field(whole, 3) == "mine"
    assert text_field(whole + b"\x2a\xff\xff\xff\xff\x0f", 3) == "mine"
    assert [text_field(data, 3) for data in (b"", b"\xff" * 20, b"\x0b" * 9, b"\x2a\x00" * 10**5 + whole)] == [""] * 4
