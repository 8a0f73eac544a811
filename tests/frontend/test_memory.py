"""What requests take of the memory is counted before it is taken, and large ones are read and answered in threads."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.frontend.admission import limits
from slotwise.frontend.admission.large_work import LARGE_BYTES, WINDOW_S, LargeWork, LoopBlocks
from slotwise.frontend.admission.limits import MOST_DERIVED_BYTES, OWN_BYTES, derived_budget
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.open_inference_messages import CLASSES, MESSAGES
from slotwise.frontend.protocols import json_pieces, kserve_v1, open_inference
from slotwise.frontend.protocols.open_inference_tensors import NUMBERS
from slotwise.frontend.protocols.records import NO_TEXT, ModelInput, ProtocolFault, RecordAnswer

from .conftest import MakeFront
from .standin import StandIn
from .test_grpc import infer, port_of

FILES, TENSORS = ModelInput("file"), ModelInput("tensor")
PICTURES = ModelInput("picture")


def v1(*instances: Any) -> bytes:
    return json.dumps({"instances": instances}, ensure_ascii=False).encode()


def v2(data: Any, shape: list[int], datatype: str) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data}]}).encode()


TEXT = base64.b64encode(bytes(range(256)) * 4000).decode()
BODIES: dict[str, tuple[bytes, Callable[[bytes], Any], Callable[[bytes], int]]] = {}


def one(name: str, body: bytes, model: ModelInput | None) -> None:
    if model is None:
        BODIES[name] = body, kserve_v1.records, kserve_v1.reading_bytes
    else:
        read, count = open_inference.request, open_inference.reading_bytes
        BODIES[name] = body, lambda data: read(data, None, model), lambda data: count(data, None)


one("v1 floats", v1(*[[0.123456789 * i] * 768 for i in range(300)]), None)
one("v1 digits", v1(*[[1] * 3000] * 100), None)
one("v1 one instance", v1([[i % 7] * 4 for i in range(60_000)]), None)
one("v1 objects", v1(*[[{"": 0}] * 200] * 300), None)
one("v1 empty lists", v1(*[[[]] * 500] * 300), None)
one("v1 texts", v1(*[["ab"] * 500] * 300), None)
one("v1 base64", v1({"b64": TEXT}, {"b64": TEXT}), None)
one("v1 wide", v1(*["\U0001f600" + "a" * 300_000] * 3), None)
one("v2 floats", v2([0.5 + i for i in range(200_000)], [200, 1000], "FP32"), TENSORS)
one("v2 nested digits", v2([[[1] * 50] * 20] * 200, [200, 20, 50], "INT64"), TENSORS)
one("v2 texts", v2(["é" * 2000] * 300, [300], "BYTES"), FILES)
one("v2 pictures", v2([TEXT] * 2, [2], "BYTES"), PICTURES)


def peak_of(work: Callable[[], Any]) -> int:
    """The most memory that it takes, with what it returns."""
    work()  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        kept = work()
        return tracemalloc.get_traced_memory()[1] if kept is not None else 0
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", BODIES)
def test_reading_a_body_takes_no_more_than_was_counted(name: str) -> None:
    body, read, count = BODIES[name]
    assert peak_of(lambda: read(body)) <= count(body)


@pytest.mark.parametrize("datatype", [*NUMBERS, "BYTES"])
def test_so_does_binary_data(datatype: str) -> None:
    if datatype in NUMBERS:
        data, model = np.zeros((4, 250_000), NUMBERS[datatype]).tobytes(), TENSORS
        tensor = {"name": "x", "shape": [4, 250_000], "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    else:
        element = struct.pack("<I", 1_000_000) + bytes(1_000_000)
        tensor = {"name": "x", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 2 * len(element)}}
        data, model = element * 2, FILES
    head = json.dumps({"inputs": [tensor]}).encode()
    body, length = head + data, str(len(head))
    assert peak_of(lambda: open_inference.request(body, length, model)) <= open_inference.reading_bytes(body, length)


@pytest.mark.parametrize("kind", ["fp32", "int", "bytes", "FP32", "INT8", "FP64"])
def test_so_does_a_message_of_grpc(kind: str) -> None:
    message = CLASSES["ModelInferRequest"](model_name="m")
    if kind == "bytes":
        tensor = message.inputs.add(name="x", datatype="BYTES", shape=[1000])
        tensor.contents.bytes_contents.extend([b"x" * 2000] * 1000)
    elif kind in NUMBERS:
        message.inputs.add(name="x", datatype=kind, shape=[100, 5000])
        message.raw_input_contents.append(np.zeros(500_000, NUMBERS[kind]).tobytes())
    else:
        tensor = message.inputs.add(name="x", datatype="FP32" if kind == "fp32" else "INT8", shape=[100, 2000])
        getattr(tensor.contents, f"{kind}_contents").extend([1] * 200_000)
    data, model = message.SerializeToString(), FILES if kind == "bytes" else TENSORS

    parsed = MESSAGES.parsed("ModelInferRequest", data)
    assert peak_of(lambda: MESSAGES.parsed("ModelInferRequest", data)) <= MESSAGES.memory_bytes("ModelInferRequest", data)
    assert peak_of(lambda: open_inference_grpc.request(parsed, model)) <= open_inference_grpc.reading_bytes(parsed)


texts = st.text(max_size=8) | st.sampled_from(["instances", "b64"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, max_size=4), st.sampled_from([None, 1]), st.integers(0, 40), texts)
def test_a_list_is_taken_out_of_json_as_json_reads_it(content: Any, indent: int | None, cut: int, junk: str) -> None:
    """And where json finds a fault so does this."""
    written = json.dumps(content, indent=indent, ensure_ascii=bool(indent))
    for text in (written, written[:cut], written[:cut] + junk + written[cut:], written + junk):
        try:
            expected = json.loads(text)
        except ValueError:
            expected = None
        if not isinstance(expected, dict):
            with pytest.raises(ValueError):
                json_pieces.elements_of(text, "instances", 100, lambda _, own: own)
            continue
        found = json_pieces.elements_of(text, "instances", 100, lambda _, own: own)
        listed = expected.get("instances")
        if not isinstance(listed, list):
            assert found is None
            continue
        assert found is not None
        assert repr([json.loads(own) for own in found]) == repr(listed)  # repr: NaN is not itself


@pytest.mark.parametrize("model", [ModelInput(), ModelInput("table", columns=(("x", "text"),))])
def test_elements_that_the_shape_does_not_name_are_never_made(model: ModelInput) -> None:
    """Four bytes on the way, packed even fewer, would be a hundred in memory."""
    size = 400_000
    tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + bytes(size)

    def read() -> bool:
        with pytest.raises(ProtocolFault, match="the shape says 1 elements, more are there"):
            open_inference.request(body, str(len(head)), model)
        return True

    assert 0 < peak_of(read) < size


def test_an_instance_goes_to_the_model_as_its_client_wrote_it() -> None:
    body = b'{"instances": [ [1.0e2, 3.14159265358979323846] , {"a":\t"\xc3\xa9"} , 1e400]}'
    records = kserve_v1.records(body)
    assert [record.body for record in records] == [b"[1.0e2, 3.14159265358979323846]", b'{"a":\t"\xc3\xa9"}', b"1e400"]


def test_an_answer_goes_to_the_client_as_the_model_wrote_it_and_breaks_out_of_no_list() -> None:
    said = [b'{"x": 3.14159265358979323846}\n', b"1], [2", b'"a", "b"', b"\xff", b"", b'{"a": "\\ud800"}', b"[" * 5000]
    reply = kserve_v1.reply([RecordAnswer(200, body) for body in said])
    first, *others, surrogate, deep = json.loads(reply)["predictions"]
    assert b"3.14159265358979323846" in reply
    assert others == ["1], [2", '"a", "b"', {"error": {"code": 500, "message": NO_TEXT}}, ""]
    assert (first, surrogate) == ({"x": 3.141592653589793}, {"a": "\ud800"})
    assert deep == {"error": {"code": 500, "message": kserve_v1.TOO_DEEP}}


@pytest.mark.anyio
async def test_what_is_large_is_done_in_threads_and_what_is_small_at_once() -> None:
    work = LargeWork()
    assert await work.run(LARGE_BYTES, threading.get_ident) == threading.get_ident()
    assert await work.run(LARGE_BYTES + 1, threading.get_ident) != threading.get_ident()
    work.close()


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["v1", "v2"])
async def test_large_requests_are_read_and_answered_in_threads(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: dict[str, set[str]] = {}

    def noted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def work(*given: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name.partition("_")[0])
            return original(*given)

        monkeypatch.setattr(module, name, work)

    module, read = (kserve_v1, "records") if path == "v1" else (open_inference, "request")
    for name in (read, "reply", "reading_bytes"):
        noted(module, name)
    front = await make_front(StandIn(), in_flight=64)
    texts = ["x" * 200] * 500
    body = v1(*texts) if path == "v1" else v2(texts, [500], "BYTES")
    url = "/v1/models/digits:predict" if path == "v1" else "/v2/models/digits/infer"
    answer = await front.client.post(url, content=body)
    assert answer.status_code == 200, answer.text
    assert threads == {name: {"large"} for name in (read, "reply", "reading_bytes")}
    assert front.gateway.body_memory.now_bytes == 0


def test_python_can_switch_to_another_thread_while_numbers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scanner is one call of C code, so for each number it must call Python."""
    seen: list[str] = []
    monkeypatch.setattr(json_pieces, "_real", lambda text: seen.append(text) or float(text))
    monkeypatch.setattr(json_pieces, "_whole", lambda text: seen.append(text) or int(text))
    assert json_pieces.loads(b"[1, 2.5, -3e4]") == [1, 2.5, -3e4]
    assert seen == ["1", "2.5", "-3e4"]


@pytest.mark.anyio
async def test_what_reading_takes_is_refused_before_it_is_taken(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front(max_memory_bytes=2**20)
    monkeypatch.setattr(kserve_v1, "records", lambda body: pytest.fail("it was read"))
    body = v1(*[[[]] * 50] * 300)  # 60 kB, and 1.5 MB once it is read
    answer = await front.client.post("/v1/models/digits:predict", content=body)
    assert answer.status_code == 413, answer.text
    assert "memory" in answer.json()["error"]
    front.gateway.body_memory.max_bytes = 2**22
    front.gateway.body_memory.take(3 * 2**20)
    answer = await front.client.post("/v1/models/digits:predict", content=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    front.gateway.body_memory.give_back(3 * 2**20)
    assert front.gateway.body_memory.now_bytes == 0


@pytest.mark.anyio
async def test_answers_of_records_that_fill_the_memory_refuse_the_whole_request(make_front: MakeFront) -> None:
    front = await make_front(max_memory_bytes=4000, in_flight=1)
    answer = await front.client.post("/v1/models/digits:predict", content=v1(*range(50)))
    assert answer.status_code == 429
    assert 0 < len(front.server.seen) < 50
    assert front.gateway.body_memory.now_bytes == 0


PACKED = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("count", [3, 900])
async def test_a_packed_request_of_records_is_unpacked(make_front: MakeFront, encoding: str, count: int) -> None:
    front = await make_front(in_flight=64)
    body = v1(*[f"{i} " + "x" * 500 for i in range(count)])
    answer = await front.client.post(
        "/v1/models/digits:predict", content=PACKED[encoding](body), headers={"content-encoding": encoding}
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == count
    assert front.gateway.body_memory.now_bytes == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (v1(1), "br", 415),
        (gzip.compress(gzip.compress(v1(1), mtime=0), mtime=0), "gzip, gzip", 415),
        (v1(1), "gzip", 400),
        (gzip.compress(v1(1), mtime=0)[:-1], "gzip", 400),
        (gzip.compress(v1(1), mtime=0) + b"x", "gzip", 400),
        (gzip.compress(v1(*["x" * 1000] * 1000), mtime=0), "gzip", 413),
        (zlib.compress(bytes(2**27)), "deflate", 413),
    ],
)
async def test_what_cannot_be_unpacked_is_refused_by_name(
    make_front: MakeFront, body: bytes, encoding: str, status: int
) -> None:
    front = await make_front(max_body_bytes=500_000)
    answer = await front.client.post("/v1/models/digits:predict", content=body, headers={"content-encoding": encoding})
    assert (answer.status_code, front.server.seen) == (status, [])
    if status == 415:
        assert "content-encoding" in answer.json()["error"]
    assert front.gateway.body_memory.now_bytes == 0


def test_the_budget_follows_the_containers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert derived_budget(2**40) == MOST_DERIVED_BYTES
    for total in (2**28, 2**29, 2**30):
        assert derived_budget(total) + OWN_BYTES < total
    monkeypatch.setattr(limits.memory, "total_bytes", lambda: 2**28)
    assert derived_budget() == (2**28 - OWN_BYTES) * 2 // 3


def test_the_longest_block_is_that_of_the_last_minute() -> None:
    now = [0.0]
    blocks = LoopBlocks(lambda: now[0])
    blocks.beat(0.7)
    blocks.beat(0.1)
    assert blocks.longest_s == 0.7
    now[0] += WINDOW_S + 1
    blocks.beat(0.2)
    assert blocks.longest_s == 0.7
    now[0] += WINDOW_S + 1
    blocks.beat(0.1)
    assert blocks.longest_s == 0.2


@pytest.mark.anyio
async def test_the_metrics_and_the_page_have_it(make_front: MakeFront) -> None:
    front = await make_front()
    front.gateway.loop_blocks.beat(0.25)
    metrics = (await front.client.get("/metrics")).text
    assert "slotwise_gateway_longest_block_seconds 0.25" in metrics
    assert "slotwise_gateway_memory_bytes 0.0" in metrics
    assert (await front.client.get("/status")).json()["longest_block_ms"] == 250.0
    watching = asyncio.create_task(front.gateway.loop_blocks.watch())
    await asyncio.sleep(0.2)
    watching.cancel()


@pytest.mark.anyio
async def test_large_messages_of_grpc_are_read_and_answered_in_threads(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, str] = {}
    for name in ("request", "reply", "reading_bytes"):

        def work(*given: Any, name: str = name, original: Any = getattr(open_inference_grpc, name)) -> Any:
            threads[name] = threading.current_thread().name.partition("_")[0]
            return original(*given)

        monkeypatch.setattr(open_inference_grpc, name, work)
    front = await make_front(StandIn(likely=True), in_flight=64)
    async with port_of(front) as call:
        assert (await call("ModelInfer", infer([500], bytes_contents=[b"\x89PNG" + b"x" * 200] * 500))).outputs
    assert threads == {"request": "large", "reply": "large", "reading_bytes": "large"}
    assert front.gateway.body_memory.now_bytes == 0
