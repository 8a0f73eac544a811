"""The gRPC port: the same records, answers and refusals as REST's; what does not fit is refused before it fills the memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import struct
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.errors import SlotwiseError
from slotwise.frontend import process
from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.call import LONGEST_MESSAGE
from slotwise.frontend.grpc.message_table import MOST_FIELDS
from slotwise.frontend.grpc.open_inference_messages import CLASSES, MESSAGES, SERVICE
from slotwise.frontend.grpc.server import GrpcServer, InferenceService
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.listening import ListenAddress, bound
from slotwise.frontend.protocols.records import MOST_PIECES, MOST_RECORDS, ModelInput, ProtocolFault
from tests.support.certificates import certificate
from tests.support.grpc_client import Call, client_of

from .conftest import Front, MakeFront
from .live import LiveFront
from .standin import StandIn

pytestmark = pytest.mark.anyio
PICTURES, TENSORS = ModelInput("picture", (), True), ModelInput("tensor", (1, 2, 2), True)
PNG = b"\x89PNG picture" * 10


def packed(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def infer(shape: list[int], raw: Sequence[bytes] = (), datatype: str = "BYTES", model: str = "digits", **contents: Any) -> Any:
    """A ModelInferRequest of one input."""
    message = CLASSES["ModelInferRequest"](model_name=model, raw_input_contents=raw)
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return message


def bodies(message: Any, model: ModelInput = TENSORS) -> list[bytes]:
    read = MESSAGES.parsed("ModelInferRequest", message.SerializeToString())
    return [record.body for record in open_inference_grpc.request(read, model).records]


def test_the_messages_are_those_of_tritons_client() -> None:
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2
    for name in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer"):
        for kind in (f"{name}Request", f"{name}Response"):
            assert layout(CLASSES[kind].DESCRIPTOR) == layout(getattr(theirs, kind).DESCRIPTOR)
    streamed = "ModelStreamInferResponse"
    assert layout(CLASSES[streamed].DESCRIPTOR) == layout(getattr(theirs, streamed).DESCRIPTOR)


def layout(message: Any) -> list[Any]:
    """Number, name, type of each field, and those of the messages within."""
    return [
        (field.number, field.name, field.type, field.is_repeated, field.message_type and layout(field.message_type))
        for field in message.fields
    ]


def test_records_are_typed_or_raw() -> None:
    assert bodies(infer([2], bytes_contents=[PNG, b""]), PICTURES) == [PNG, b""]
    assert bodies(infer([2, 1], [packed([PNG, b""])]), PICTURES) == [PNG, b""]
    rows = np.arange(8, dtype="<f4").reshape(2, 1, 2, 2)
    wanted, numbers = [row.tobytes() for row in rows], range(8)
    for datatype, name in open_inference_grpc.CONTENTS.items():
        if datatype not in ("BOOL", "BYTES"):
            assert bodies(infer([2, 1, 2, 2], datatype=datatype, **{name: numbers})) == wanted
    assert bodies(infer([2, 1, 2, 2], [rows.astype("<f2").tobytes()], "FP16")) == wanted
    assert bodies(infer([1, 1, 2, 2], datatype="BOOL", bool_contents=[True, False] * 2)) == [
        np.array([1, 0, 1, 0], "<f4").tobytes()
    ]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (CLASSES["ModelInferRequest"](), 400),
        (infer([]), 400),
        (infer([0], bytes_contents=[]), 400),
        (infer([-1], bytes_contents=[b"a"]), 400),
        (infer([10**12], bytes_contents=[b"a"]), 413),
        (infer([1, 10**12, 2, 2], datatype="FP32", fp32_contents=[1]), 400),
        (infer([1] * 100_000, bytes_contents=[b"a"]), 400),
        (infer([2], bytes_contents=[b"a"]), 400),
        (infer([1, 2], bytes_contents=[b"a", b"b"]), 400),
        (infer([100_000], bytes_contents=[b""] * 100_000), 413),
        (infer([100_000], [packed([b""] * 100_000)]), 413),
        (infer([MOST_RECORDS + 1], [packed([b""] * (MOST_RECORDS + 1))]), 413),
        (infer([1, 1, 2, 2], datatype="INT64", int64_contents=[0] * (MOST_PIECES + 1)), 413),
        (infer([1], [b"\0\0"]), 400),
        (infer([1], [struct.pack("<I", 2**31) + b"a"]), 400),
        (infer([2], [packed([b"a"])]), 400),
        (infer([1], [packed([b"a"])], bytes_contents=[b"a"]), 400),
        (infer([1], [packed([b"a"])] * 2), 400),
        (infer([1, 1, 2, 2], [b"\0" * 15], "FP32"), 400),
        (infer([1, 1, 2, 2], [b"\0" * 16], "FP64"), 400),
        (infer([1, 1, 2, 2], datatype="FP32", int_contents=[1] * 4), 400),
        (infer([1, 1, 2, 2], datatype="INT8", int_contents=[300] * 4), 400),
        (infer([1, 1, 2, 2], datatype="FP16", fp32_contents=[1] * 4), 400),
        (infer([1, 1, 2, 2], datatype="FP128", fp32_contents=[1] * 4), 400),
        (infer([1, 1, 2, 2], datatype="FP32", fp32_contents=[1] * 3), 400),
    ],
)  # fmt: skip
def test_a_request_that_fits_nothing_is_refused(message: Any, status: int) -> None:
    with pytest.raises(ProtocolFault) as fault:
        bodies(message)
    assert fault.value.status == status


@pytest.mark.parametrize(
    "data", [b"\x2a\x00" * (MOST_FIELDS + 1), b"\x2a\xff\xff\xff\xff\x0f", b"\x2b", b"\x09\x01", b"\x2a" + b"\x80" * 20]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        MESSAGES.parsed("ModelInferRequest", data)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes) -> None:
    for start in (b"", infer([1], bytes_contents=[b"a"]).SerializeToString()):
        with suppress(ProtocolFault):
            bodies(MESSAGES.parsed("ModelInferRequest", start + data))


@asynccontextmanager
async def port_of(front: Front, cert: Path | None = None, key: Path | None = None) -> AsyncIterator[Call]:
    """A client of a gRPC port in front of it."""
    server = GrpcServer(front.gateway, "127.0.0.1", 0, CertificateFiles(cert, key) if cert and key else None)
    await server.bind()
    await server.start()
    async with client_of(f"127.0.0.1:{server.port}", cert.read_bytes() if cert else None) as call:
        yield call
    await server.stop(None)


@asynccontextmanager
async def refused(status: str) -> AsyncIterator[list[Any]]:
    """What is called within is refused with that status."""
    found: list[Any] = []
    with pytest.raises(grpc.aio.AioRpcError) as error:
        yield found
    assert error.value.code().name == status, error.value
    found.append(error.value)


async def test_records_are_answered_in_their_places(make_front: MakeFront) -> None:
    front = await make_front(StandIn(likely=True))
    async with port_of(front) as call:
        given = [PNG, b"no picture", PNG]
        raw = await call("ModelInfer", infer([3], [packed(given)]))
        typed = await call("ModelInfer", infer([3, 1], bytes_contents=given), x_request_id="mine")
    assert [output.name for output in raw.outputs] == ["answer", "label", "probability", "probabilities"]
    assert raw.raw_output_contents[1] == packed([b"7", b"", b"7"])
    assert np.frombuffer(raw.raw_output_contents[2], "<f4").tolist() == pytest.approx([0.95, 0, 0.95])
    assert list(typed.outputs[1].contents.bytes_contents) == [b"7", b"", b"7"]
    assert list(typed.outputs[2].contents.fp32_contents) == pytest.approx([0.95, 0, 0.95])
    for answer in (raw, typed):
        assert json.loads(answer.parameters["errors"].string_param)["1"]["code"] == 400
        assert answer.model_version == "1.0"
    assert {seen.headers["x-request-id"] for seen in front.server.seen[3:]} == {"mine-0", "mine-1", "mine-2"}
    assert front.gateway.body_memory.now_bytes == 0


async def test_the_servers_and_the_models_state(make_front: MakeFront) -> None:
    async with port_of(await make_front()) as call:
        assert (await call("ServerLive")).live
        assert (await call("ServerReady")).ready
        assert (await call("ServerMetadata")).name == "slotwise"
        for name, version, ready in (("digits", "", True), ("digits", "1.0", True), ("digits", "7", False), ("no", "", False)):
            assert (await call("ModelReady", CLASSES["ModelReadyRequest"](name=name, version=version))).ready == ready
        found = await call("ModelMetadata", CLASSES["ModelMetadataRequest"](name="digits"))
        assert (found.inputs[0].datatype, list(found.inputs[0].shape)) == ("BYTES", [-1, 1])


async def test_what_is_refused_has_a_status_that_says_why(make_front: MakeFront) -> None:
    front = await make_front(StandIn(likely=True), max_body_bytes=2**16)
    good = infer([1], [packed([PNG])])
    async with port_of(front) as call:
        for status, method, message, more in (
            ("NOT_FOUND", "ModelInfer", infer([1], [packed([PNG])], model="nobody"), {}),
            ("NOT_FOUND", "ModelInfer", infer([2], [packed([PNG, PNG])], model="nobody"), {}),
            ("NOT_FOUND", "ModelInfer", infer([1], [packed([PNG])], model="../x" * 9000), {}),
            ("NOT_FOUND", "ModelMetadata", CLASSES["ModelMetadataRequest"](name="n" * 9000), {}),
            ("INVALID_ARGUMENT", "ModelInfer", infer([1], [packed([b"no picture"])]), {}),
            ("INVALID_ARGUMENT", "ModelInfer", infer([-1], [packed([PNG])]), {}),
            ("INVALID_ARGUMENT", "ModelInfer", infer([10**12], [packed([PNG])]), {}),
            ("INVALID_ARGUMENT", "ModelInfer", infer([10_000], [packed([b""] * 10_000)]), {}),
            ("INVALID_ARGUMENT", "ModelInfer", b"\xff" * 100, {}),
            ("INVALID_ARGUMENT", "ModelReady", b"\xff" * 100, {}),
            ("INVALID_ARGUMENT", "ModelInfer", good, {"x_deadline_ms": "soon"}),
            ("DEADLINE_EXCEEDED", "ModelInfer", good, {"x_deadline_ms": "1"}),
            ("RESOURCE_EXHAUSTED", "ModelInfer", b"\0" * (2**16 + 1), {}),
            ("RESOURCE_EXHAUSTED", "ModelInfer", good, {"x_huge": "y" * 2**16}),
            ("UNIMPLEMENTED", "RepositoryModelLoad", b"", {}),
        ):
            async with refused(status) as error:
                await call(method, message, **more)
            assert error[0].details()
            assert len(error[0].details()) <= LONGEST_MESSAGE
        assert (await call("ModelInfer", good)).raw_output_contents
    assert front.gateway.body_memory.now_bytes == 0
    counted = front.gateway.metrics.registry.get_sample_value
    assert counted("slotwise_requests_total", {"model": "digits", "status": "413"}) == 2.0
    assert counted("slotwise_requests_total", {"model": "other", "status": "404"}) == 4.0  # of these one has two records


async def test_a_compressed_message_is_limited_by_what_it_becomes(make_front: MakeFront) -> None:
    async with port_of(await make_front(StandIn(likely=True), max_body_bytes=2**16)) as call:
        assert (await call("ModelInfer", infer([1], [packed([PNG])]), compression=grpc.Compression.Gzip)).raw_output_contents
        async with refused("RESOURCE_EXHAUSTED"):
            await call("ModelInfer", b"\0" * 2**22, compression=grpc.Compression.Gzip)  # 4 KiB on the way


@pytest.mark.parametrize(("model", "shape"), [("nobody", [1]), ("digits", [2])])
async def test_a_message_that_was_refused_is_gone(make_front: MakeFront, model: str, shape: list[int]) -> None:
    """Also before Python looks for garbage."""
    message, count = infer(shape, [packed([b"a" * 2**22])], model=model).SerializeToString(), 8
    front = await make_front(StandIn(likely=True), max_body_bytes=2**23)
    async with port_of(front) as call:
        async with refused("NOT_FOUND" if model == "nobody" else "INVALID_ARGUMENT"):
            await call("ModelInfer", message)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(count):
                with suppress(grpc.aio.AioRpcError):
                    await call("ModelInfer", message)
                front.server.seen.clear()  # which holds its body
            left_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert left_bytes < (count - 4) * 2**22


async def test_keys_and_tls_are_those_of_the_http_side(make_front: MakeFront, tmp_path: Path) -> None:
    front = await make_front(StandIn(likely=True))
    key, narrow = keys.add(tmp_path / "keys.json", "mine"), keys.add(tmp_path / "keys.json", "narrow", ("captions",))
    front.gateway.keys = KeyFile(tmp_path / "keys.json")
    good = infer([2], [packed([PNG, PNG])])
    async with port_of(front, *certificate(tmp_path)) as call:
        assert (await call("ServerReady")).ready
        assert (await call("ModelInfer", good, x_api_key=key)).raw_output_contents
        assert (await call("ModelInfer", good, authorization=f"Bearer {key}")).raw_output_contents
        for method in ("ModelInfer", "ModelReady", "ModelMetadata", "ServerMetadata"):
            async with refused("UNAUTHENTICATED"):
                await call(method, good if method == "ModelInfer" else b"", x_api_key="guessed")
        async with refused("PERMISSION_DENIED"):
            await call("ModelInfer", good, x_api_key=narrow)


async def test_a_client_that_hangs_up_gives_up_its_place_in_the_queue(make_front: MakeFront) -> None:
    gate = asyncio.Event()
    front = await make_front(StandIn(gate=gate), in_flight=1, queued=8, hedge=False)
    limit = front.gateway.traffic("digits").limit
    async with port_of(front) as call:
        asked = [asyncio.ensure_future(call("ModelInfer", infer([3], bytes_contents=[b"a", b"b", b"c"]))) for _ in range(2)]
        async with asyncio.timeout(90):
            while (limit.running, limit.queued) != (1, 2):  # the one for its second record, too
                await asyncio.sleep(0.01)
            for one in asked:
                one.cancel()
            while limit.queued:
                await asyncio.sleep(0.01)
            assert limit.running == 1
            gate.set()
            while limit.running:
                await asyncio.sleep(0.01)
    assert len(front.server.seen) == 1
    assert front.gateway.body_memory.now_bytes == 0


async def test_calls_that_are_cancelled_leave_the_process_alive(live_front: LiveFront) -> None:
    """Some are cancelled while their records are read, when their context is gone already."""
    message = infer([64], bytes_contents=[b"a" * 1000] * 64)
    async with client_of(live_front.record.grpc) as call:
        for _ in range(4):
            asked = [asyncio.ensure_future(call("ModelInfer", message, timeout=60 if i % 5 else 0.005)) for i in range(25)]
            for one in asked:
                await asyncio.sleep(random.uniform(0, 0.01))
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        assert (await call("ServerLive")).live
    assert live_front.record.alive()


@asynccontextmanager
async def idle_calls(address: str, count: int) -> AsyncIterator[None]:
    """So many calls on a connection of their own, whose message never comes."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        alive = channel.unary_unary(f"/{SERVICE}/ServerLive")
        calls = [ask(timeout=60) for _ in range(count)]
        await asyncio.gather(*[call.wait_for_connection() for call in calls])
        await alive(b"", timeout=60)  # comes behind them
        yield
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await alive(b"", timeout=60)  # comes behind their ends: gRPC would tell them to this loop when it is closed


async def test_idle_calls_keep_nobody_waiting(live_front: LiveFront) -> None:
    good = infer([1], bytes_contents=[b"a"])
    async with idle_calls(live_front.record.grpc, 64), client_of(live_front.record.grpc) as call:
        for _ in range(3):
            assert (await call("ModelInfer", good, timeout=8)).outputs


@pytest.mark.parametrize(("limits", "refused"), [({"max_connections_per_address": 2}, 2), ({"max_connections": 3}, 3)])
async def test_there_are_so_many_calls_at_once(make_front: MakeFront, limits: dict[str, int], refused: int) -> None:
    front = await make_front()
    service = InferenceService(front.gateway, ConnectionLimits(**limits))
    ended: list[str] = []

    class Context:
        def __init__(self, peer: str) -> None:
            self.peer = lambda: peer
            self.invocation_metadata = self.time_remaining = lambda: None
            self.set_trailing_metadata = lambda given: None

        async def abort(self, code: grpc.StatusCode, message: str, trailing: Any) -> None:
            ended.append(code.name)

    async def messages() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    peers = ["ipv6:[2001:db8::1]:7", "ipv6:[2001:db8::2]:8", "ipv6:[2001:db8::3]:9", "ipv6:[2001:db8:0:1::1]:7"]
    calls = [asyncio.create_task(service.methods["ModelInfer"](messages(), Context(peer))) for peer in peers]
    await asyncio.wait([calls[refused]])
    assert ended == ["RESOURCE_EXHAUSTED"]
    assert [call.done() for call in calls] == [i == refused for i in range(4)]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert service._calls == {}
    assert service._count == 0


async def test_nothing_asks_the_context_of_a_call_that_has_ended(make_front: MakeFront) -> None:
    ended, asked_late = False, []

    class Context:
        def __getattr__(self, name: str) -> Any:
            if ended:
                asked_late.append(name)
            answers = {"invocation_metadata": (), "time_remaining": None, "peer": "ipv4:127.0.0.1:1"}
            return lambda *given: answers.get(name)

    async def messages() -> AsyncIterator[bytes]:
        yield infer([1], bytes_contents=[b"a"]).SerializeToString()

    front = await make_front()
    service = InferenceService(front.gateway)
    answering = asyncio.create_task(service.methods["ModelInfer"](messages(), Context()))
    while not service.under_way:
        await asyncio.sleep(0)
    answering.cancel()
    ended = True
    await asyncio.wait([answering])
    await asyncio.wait(service.under_way)
    assert asked_late == []


async def test_a_process_says_where_it_listens_and_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    options = ["--port", "0", "--translation-port", "-1", "--drain-delay-s", "0"]
    async with StandIn(gate=asyncio.Event()) as server:
        (tmp_path / "default").mkdir()
        server.record(tmp_path / "default").save()
        listen = ListenAddress(port=0, translation_port=-1, grpc_port=server.port)
        with pytest.raises(SlotwiseError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            bound(listen)
        record = await asyncio.to_thread(process.start_detached, "default", [*options, "--grpc-port", "0"])
        try:
            async with client_of(record.grpc) as call:
                assert (await call("ServerLive")).live
                asked = asyncio.ensure_future(call("ModelInfer", infer([1], bytes_contents=[b"a"])))
                async with asyncio.timeout(60):
                    while not server.seen:
                        await asyncio.sleep(0.02)
                    os.kill(record.pid, signal.SIGTERM)
                    await refuses(call)
                assert server.gate
                server.gate.set()
                assert (await asked).outputs[0].contents.bytes_contents
        finally:
            await asyncio.to_thread(process.stop)


async def refuses(call: Call) -> None:
    """Wait until no new call is taken."""
    with suppress(grpc.aio.AioRpcError):
        while (await call("ServerLive")).live:
            await asyncio.sleep(0.05)


async def test_connections_on_which_nothing_is_asked_are_within_the_limit(make_front: MakeFront) -> None:
    """Each takes a file that nobody else can open then."""
    front = await make_front()
    server = GrpcServer(front.gateway, "127.0.0.1", 0, None, ConnectionLimits(max_connections=2))
    await server.bind()
    await server.start()
    writers = list[asyncio.StreamWriter]()
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writers.append(writer)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            said = b""
            async with asyncio.timeout(60):
                with suppress(ConnectionError):
                    said = await reader.read(9)
            assert bool(said) == (len(writers) < 3)
    finally:
        for writer in writers:
            writer.close()
        await server.stop(0)
