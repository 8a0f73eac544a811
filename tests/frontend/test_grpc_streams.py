"""ModelStreamInfer: many requests on one call, each answered by its own id, whole or piece by piece."""

from __future__ import annotations

import asyncio
import json
import queue
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest
from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.grpc.infer_stream import LONGEST_ID, MOST_AT_ONCE
from slotwise.frontend.grpc.message_table import text_field
from slotwise.frontend.protocols.open_inference_tensors import NO_SEQUENCE
from tests.support.grpc_client import streaming as stream_of

from .conftest import Front, MakeFront
from .infer_streams import asked, infer, said, server_of
from .standin import StandIn
from .streaming import Streaming

pytestmark = pytest.mark.anyio


@pytest.fixture
async def front(make_front: MakeFront) -> Front:
    return await make_front(StandIn(likely=True), max_body_bytes=2**16, in_flight=32)


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


async def test_an_empty_answer_of_a_model_that_does_not_stream_comes(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole(request: BackendRequest) -> BackendAnswer:
        request.pieces = None
        return BackendAnswer(200, [(b"content-type", b"text/plain")], b"")

    monkeypatch.setattr(front.gateway.backend, "answer", whole)
    monkeypatch.setattr(front.gateway.backend, "streams", True)
    async with server_of(front.gateway) as (_, channel):
        assert (await asked(channel, infer("a", "one")))["one"] == [("one", [""], True)]


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


async def test_each_request_needs_the_key_and_has_its_deadline(
    front: Front, streaming: Streaming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = keys.add(tmp_path / "keys.json", "mine")
    narrow = keys.add(tmp_path / "keys.json", "narrow", ("captions",))
    front.gateway.keys = KeyFile(tmp_path / "keys.json")
    async with server_of(front.gateway) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            # It sends nothing: where the call has ended, grpcio's client says INTERNAL of what it cannot write.
            await stream_of(channel, timeout=60).read()
        assert error.value.code().name == "UNAUTHENTICATED"
        assert (await asked(channel, infer("a", "one"), x_api_key=mine))["one"] == [("one", ["a"], False)]
        assert (await asked(channel, infer("a", "one"), x_api_key=narrow))["one"][0][1][0].startswith("403 ")
        monkeypatch.undo()
        late = await asked(channel, infer("a", "one"), x_api_key=mine, x_deadline_ms="1")
        assert late["one"][0][1][0].startswith("504 ")


def test_the_id_is_found_in_what_is_no_message(anyio_backend: str) -> None:
    whole = infer("a", "mine").SerializeToString()
    assert text_field(whole, 3) == "mine"
    assert text_field(whole + b"\x2a\xff\xff\xff\xff\x0f", 3) == "mine"
    assert [text_field(data, 3) for data in (b"", b"\xff" * 20, b"\x0b" * 9, b"\x2a\x00" * 10**5 + whole)] == [""] * 4
