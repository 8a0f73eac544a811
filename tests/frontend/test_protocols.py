"""KServe V1 and the Open Inference Protocol: records become requests, answers stand in their places, nonsense is a 4xx."""

from __future__ import annotations

import base64
import json
import math
import struct
import zipfile
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.backends.catalog import ModelCard
from slotwise.backends.exchange import BackendAnswer, BackendRequest, ReadFor
from slotwise.backends.interface import Refused
from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.protocols import kserve_v1, open_inference
from slotwise.frontend.protocols.kserve_v1 import NO_JSON
from slotwise.frontend.protocols.open_inference_outputs import InferRequest, infer_request
from slotwise.frontend.protocols.open_inference_tensors import NO_SEQUENCE
from slotwise.frontend.protocols.records import MOST_RECORDS, NO_TEXT, ModelInput, ProtocolFault, RecordAnswer, RecordBody
from slotwise.server.record import Kind
from slotwise.worker.labels import RAW_NUMBERS

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio
PICTURES, TENSORS = ModelInput("picture", (), True), ModelInput("tensor", (1, 2, 2), True)
PNG = b"\x89PNG picture" * 10


def bodies(records: Any) -> list[bytes]:
    return [record.body for record in records]


def binary(elements: list[bytes], **changes: Any) -> tuple[bytes, str]:
    """A request with BYTES as binary data, and its header."""
    data = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    tensor = {"name": "x", "datatype": "BYTES", "shape": [len(elements)], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [{**tensor, **changes}]}).encode()
    return head + data, str(len(head))


def read(content: Any, model: ModelInput = TENSORS) -> InferRequest:
    return open_inference.request(json.dumps(content).encode(), None, model)


def numbers(data: Any, shape: list[Any], datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data, **more}]}


def test_every_instance_is_a_record() -> None:
    instances = [{"b64": base64.b64encode(PNG).decode()}, {"data": "x"}, [1, [2]], "text", {"b64": "no base64!"}]
    *found, wrong = kserve_v1.records(json.dumps({"instances": instances}).encode())
    assert bodies(found) == [PNG, b'{"data": "x"}', b"[1, [2]]", b'"text"']
    assert isinstance(wrong, RecordAnswer)
    said = kserve_v1.reply([RecordAnswer(200, b'{"label": "7"}'), RecordAnswer(200, b"plain"), wrong])
    assert json.loads(said) == {
        "predictions": [{"label": "7"}, "plain", {"error": {"code": 400, "message": "b64 is no base64"}}]
    }


@pytest.mark.parametrize("content_type", ["", "application/json"])
def test_json_that_is_nested_too_deep_does_not_become_a_text(content_type: str) -> None:
    with pytest.raises(ProtocolFault, match="nested too deep"):
        kserve_v1.reply([RecordAnswer(200, b"[" * 100_000 + b"]" * 100_000, content_type)])


@pytest.mark.parametrize(
    ("beside", "taken"),
    [
        ({"parameters": {}}, True),
        ({"signature_name": "x"}, True),
        ({"parameters": {"top": 1}}, False),
        ({"parameters": 0.7}, False),
        ({"parameters": None}, True),
        ({"inputs": [2]}, False),
        ({"inputs": None}, False),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_stands_beside_instances_is_not_dropped_in_silence(beside: dict[str, Any], taken: bool, first: bool) -> None:
    body = json.dumps({**beside, "instances": [1]} if first else {"instances": [1], **beside}).encode()
    if taken:
        assert len(kserve_v1.records(body)) == 1
    else:
        with pytest.raises(ProtocolFault, match=next(iter(beside))):
            kserve_v1.records(body)


def test_bytes_and_numbers_of_either_form_are_records() -> None:
    assert bodies(open_inference.request(*binary([PNG, b""]), PICTURES).records) == [PNG, b""]
    assert bodies(open_inference.request(*binary([PNG, b""], shape=[2, 1]), PICTURES).records) == [PNG, b""]
    as_text = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}
    assert bodies(read(as_text, PICTURES).records) == [b'{"b64": "aGk="}']
    assert bodies(read(as_text, ModelInput("translation")).records) == [b"aGk="]
    rows = np.arange(8, dtype="<f4").reshape(2, 1, 2, 2)
    for data in (rows.ravel().tolist(), rows.tolist()):
        for datatype in ("FP32", "FP64", "INT8", "UINT64"):
            plain = json.loads(json.dumps(data).replace(".0", ""))
            assert bodies(read(numbers(plain, [2, 1, 2, 2], datatype)).records) == [row.tobytes() for row in rows]
    head = json.dumps(numbers([], [2, 1, 2, 2], "FP16", parameters={"binary_data_size": 16})).encode()
    found = open_inference.request(head + rows.astype("<f2").tobytes(), str(len(head)), TENSORS)
    assert bodies(found.records) == [row.tobytes() for row in rows]
    assert {record.content_type for record in found.records} == {RAW_NUMBERS}, "else b'1.25' would be a text"


@pytest.mark.parametrize(
    ("dtype", "datatype", "data", "held"),
    [
        ("float32", "INT64", [-(2**24), 2**24, 2**40, 2**62], True),
        ("float32", "UINT64", [0, 1, 2**63, 2**64 - 2**40], True),
        ("float32", "INT64", [0, 0, 0, 2**24 + 1], False),
        ("float32", "UINT32", [0, 0, 0, 2**32 - 1], False),
        ("float32", "FP64", [0.1, 16777217, 1e300, -0.0], True),  # rounded, as every FP64 is
        ("int64", "INT64", [-(2**63), 2**63 - 1, 2**53 + 1, 0], True),
        ("int64", "INT32", [-5, 7, 0, 1], True),
        ("int64", "FP64", [-5.0, 7.0, 2.0**62, 0.0], True),
        ("int64", "UINT64", [0, 0, 0, 2**63], False),
        ("int64", "FP32", [0, 0, 0, 0.5], False),
        ("int64", "FP64", [0, 0, 0, 2.0**63], False),
        ("int64", "FP64", [0, 0, 0, 2**53 + 1], False),
        ("int64", "FP32", [0, 0, 0, 2**24 + 1], False),
        ("uint8", "UINT8", [0, 1, 255, 7], True),
        ("uint8", "BOOL", [True, False, 1, 0], True),
        ("uint8", "INT64", [0, 0, 256, 0], False),
        ("uint8", "FP32", [0, 0, -1.0, 0], False),
    ],
)
def test_numbers_come_as_the_model_takes_them_or_not_at_all(dtype: str, datatype: str, data: list[Any], held: bool) -> None:
    model = replace(TENSORS, dtype=dtype)
    assert open_inference.metadata("m", ["1"], model)["inputs"][0]["datatype"] == {"float32": "FP32"}.get(dtype, dtype.upper())
    if not held:
        with pytest.raises(ProtocolFault, match="does not hold every number") as fault:
            read(numbers(data, [1, 1, 2, 2], datatype), model)
        assert fault.value.status == 415
        return
    (body,) = bodies(read(numbers(data, [1, 1, 2, 2], datatype), model).records)
    with np.errstate(over="ignore"):
        assert body == np.array(data).astype(dtype).tobytes()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({}, 400),
        ({"inputs": []}, 400),
        ({"inputs": [1]}, 400),
        ({"inputs": {}}, 400),
        (numbers([], []), 400),
        (numbers([], [0, 1, 2, 2]), 400),
        (numbers([], [-1, 1, 2, 2]), 400),
        (numbers([1], [10**12]), 413),
        (numbers([1], [1, 10**12]), 400),
        (numbers([1], [1, 2**70]), 400),
        (numbers([1], [1] * 100_000), 400),
        (numbers([1], [1.0]), 400),
        (numbers([1], [True]), 400),
        (numbers([1] * 4, [MOST_RECORDS + 1, 1, 2, 2]), 413),
        (numbers([1] * 3, [1, 1, 2, 2]), 400),
        (numbers([[1, 2], [3]], [1, 1, 2, 2]), 400),
        (numbers([1, 2, 3, "4"], [1, 1, 2, 2]), 400),
        (numbers([1, 2, 3, None], [1, 1, 2, 2]), 400),
        (numbers([1, 2, 3, 300], [1, 1, 2, 2], "INT8"), 400),
        (numbers([1, 2, 3, -1], [1, 1, 2, 2], "UINT8"), 400),
        (numbers([1, 2, 3, 10**400], [1, 1, 2, 2], "INT64"), 400),
        (numbers([1] * 4, [1, 2, 2, 1]), 400),
        (numbers([1] * 4, [1, 1, 2, 2], "FP128"), 400),
        (numbers([1] * 4, [1, 1, 2, 2], ["FP32"]), 400),
        (numbers(["a"], [1], "BYTES", parameters={"binary_data_size": 5}), 400),
        (numbers(["a"], [1], "BYTES", parameters=[]), 400),
        (numbers(["a"], [2], "BYTES"), 400),
        (numbers(["a", "b"], [1, 2], "BYTES"), 400),
        (numbers([1], [1], "BYTES"), 400),
        (numbers([1], [1], "BYTES") | {"id": 7}, 400),
        (numbers(["a"], [1], "BYTES") | {"outputs": [{"name": "nothing"}]}, 400),
        (numbers(["a"], [1], "BYTES") | {"outputs": "answer"}, 400),
        (numbers(["a"], [1], "BYTES") | {"outputs": [{"name": []}]}, 400),
    ],
)
def test_a_request_that_fits_nothing_is_refused(content: Any, status: int) -> None:
    with pytest.raises(ProtocolFault) as fault:
        read(content)
    assert fault.value.status == status


def test_a_sequence_is_not_dropped_in_silence() -> None:
    """Over gRPC neither; a model that keeps state would take its requests for somebody else's."""
    one = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    whole = json.dumps({"parameters": {"sequence_id": 7, "sequence_start": True}, "inputs": [one]}).encode()
    message = CLASSES["ModelInferRequest"](model_name="m", raw_input_contents=[b"\1\0\0\0a"])
    message.inputs.add(name="x", datatype="BYTES", shape=[1])
    assert len(open_inference_grpc.request(message, ModelInput()).records) == 1
    message.parameters["sequence_id"].int64_param = 7
    any_model = ModelInput()
    for read in (
        lambda: open_inference.request(whole, None, any_model),
        lambda: open_inference_grpc.request(message, any_model),
    ):
        with pytest.raises(ProtocolFault, match=NO_SEQUENCE) as refused:
            read()
        assert refused.value.status == 400


def test_base64_of_a_whole_request_is_not_read_as_texts() -> None:
    """Each input says it of its own; the model would get the text of what was meant as bytes."""
    one = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["aGk="]}
    for said in ("base64", "str"):
        whole = json.dumps({"parameters": {"content_type": said}, "inputs": [one]}).encode()
        message = CLASSES["ModelInferRequest"](model_name="m", raw_input_contents=[b"\4\0\0\0aGk="])
        message.inputs.add(name="x", datatype="BYTES", shape=[1])
        message.parameters["content_type"].string_param = said
        if said == "str":
            assert bodies(open_inference.request(whole, None, ModelInput()).records) == [b"aGk="]
            assert bodies(open_inference_grpc.request(message, ModelInput()).records) == [b"aGk="]
            continue
        with pytest.raises(ProtocolFault, match="is an input's own"):
            open_inference.request(whole, None, ModelInput())
        with pytest.raises(ProtocolFault, match="is an input's own"):
            open_inference_grpc.request(message, ModelInput())


@pytest.mark.parametrize(
    ("data", "shape", "taken"),
    [
        ([[1, 2], [3, 4], [5, 6]], [3, 2], True),
        ([1, 2, 3, 4, 5, 6], [3, 2], True),
        ([[[1, 2]], [[3, 4]], [[5, 6]]], [3, 2], True),
        ([[1], [2], [3]], [3], True),
        ([[1, 2, 3], [4, 5, 6]], [3, 2], False),
        ([[1, 2, 3, 4, 5, 6]], [3, 2], False),
        ([[[1, 2], [3, 4], [5, 6]]], [3, 1, 2], True),
        ([[[1, 2, 3], [4, 5, 6]]], [1, 3, 2], False),
    ],
)
def test_nested_lists_that_contradict_the_shape_are_refused(data: Any, shape: list[int], taken: bool) -> None:
    content = numbers(data, shape)
    if taken:
        assert b"".join(bodies(read(content, ModelInput("tensor")).records)) == np.ravel(np.array(data, "<f4")).tobytes()
    else:
        with pytest.raises(ProtocolFault, match="the shape says"):
            read(content, ModelInput("tensor"))


UNREAD = [
    ({"sequence_start": True}, NO_SEQUENCE),
    ({"sequence_end": True}, NO_SEQUENCE),
    ({"temperature": 0.1}, "'temperature' is not read here"),
    ({"binary_data_output": True, "classification": 3}, "'classification' is not read here"),
    ({"shared_memory_region": "r", "shared_memory_byte_size": 8}, "'shared_memory_byte_size' is not read here"),
]


def with_parameters(place: str, given: dict[str, Any]) -> list[Any]:
    """A request with these parameters there, over REST and gRPC: each reads it."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    content: dict[str, Any] = {"inputs": [tensor], "outputs": [{"name": "answer"}]}
    message = CLASSES["ModelInferRequest"](model_name="m")
    added = message.inputs.add(name="x", datatype="BYTES", shape=[1])
    added.contents.bytes_contents.append(b"a")
    named = message.outputs.add(name="answer")
    places: dict[str, Any] = {"request": (content, message), "input": (tensor, added), "output": (content["outputs"][0], named)}
    as_json, as_message = places[place]
    as_json["parameters"] = given
    for name, value in given.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(as_message.parameters[name], kind, value)
    return [lambda: read(content, ModelInput()), lambda: open_inference_grpc.request(message, ModelInput())]


@pytest.mark.parametrize("place", ["request", "input", "output"])
@pytest.mark.parametrize(("given", "said"), UNREAD)
def test_a_parameter_that_is_not_read_is_not_dropped_in_silence(place: str, given: dict[str, Any], said: str) -> None:
    for reading in with_parameters(place, given):
        with pytest.raises(ProtocolFault, match=said) as refused:
            reading()
        assert refused.value.status == 400


def test_parameters_that_change_no_answer_are_taken() -> None:
    """What tritonclient and KServe's client send, too."""
    more: dict[str, Any] = {"priority": 1, "timeout": 5, "binary_data_output": False}
    more["triton_enable_empty_final_response"] = True
    for place, taken in (("request", more), ("input", {"content_type": "str"}), ("output", {"binary_data": False})):
        for reading in with_parameters(place, taken):
            assert bodies(reading().records) == [b"a"]
    for reading in with_parameters("output", {"content_type": "base64"}):
        with pytest.raises(ProtocolFault, match="an output has no content_type"):
            reading()


def test_base64_that_says_so_reaches_the_model_as_bytes() -> None:
    """In JSON, as binary data, and over gRPC; what is no base64 is that record's error."""
    said = [base64.b64encode(PICTURE).decode(), "no base64!"]
    tensor = {"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"content_type": "base64"}}
    message = CLASSES["ModelInferRequest"](model_name="m")
    added = message.inputs.add(name="x", datatype="BYTES", shape=[2])
    added.parameters["content_type"].string_param = "base64"
    added.contents.bytes_contents.extend(one.encode() for one in said)
    packed, length = binary([one.encode() for one in said])
    size = len(packed) - int(length)
    packed, length = binary([one.encode() for one in said], parameters={"binary_data_size": size, "content_type": "base64"})
    for model in (ModelInput(), PICTURES):
        for asked in (
            read({"inputs": [{**tensor, "data": said}]}, model),
            open_inference.request(packed, length, model),
            open_inference_grpc.request(message, model),
        ):
            good, wrong = asked.records
            assert good == RecordBody(PICTURE)
            assert isinstance(wrong, RecordAnswer)
            assert (wrong.status, wrong.message) == (400, "an element is no base64")
    with pytest.raises(ProtocolFault, match="says that it is base64"):
        read({"inputs": [{**tensor, "data": said}]}, ModelInput("table", columns=(("x", "text"),)))


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    content = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["fine", "not bad \ud83d at all"]}]}
    with pytest.raises(ProtocolFault, match="half of a surrogate pair") as refused:
        read(content, ModelInput("text"))
    assert refused.value.status == 400


def test_numbers_for_a_model_of_pictures_are_refused() -> None:
    with pytest.raises(ProtocolFault, match="takes a picture a record, as BYTES"):
        read(numbers([1] * 4, [1, 1, 2, 2]), PICTURES)


@pytest.mark.parametrize("length", ["", "-1", "1e3", "99999", "9" * 4000, "²"])
def test_a_header_that_does_not_fit_the_body_is_refused(length: str) -> None:
    with pytest.raises(ProtocolFault, match="Inference-Header-Content-Length"):
        open_inference.request(b"{}", length, PICTURES)


def test_a_shape_of_very_many_sides_is_refused_before_anything_is_multiplied() -> None:
    for model in (ModelInput("tensor"), PICTURES):
        for datatype in ("FP32", "BYTES"):
            with pytest.raises(ProtocolFault, match="at most 16 are taken"):
                read(numbers([1], [1] + [2**39] * 200_000, datatype), model)


@pytest.mark.parametrize("said", ["text", None, [1], {}, 10**400, float("nan"), 1e308, True])
def test_a_probability_that_is_no_number_of_fp32_is_none(said: Any) -> None:
    body = json.dumps({"label": "7", "probabilities": {"7": said}}).encode()
    for binary in (False, True):
        asked = InferRequest([RecordBody(b"")], "", {"probability": binary})
        headers, answer = open_inference.reply(asked, "m", "1", PICTURES, [RecordAnswer(200, body)])
        assert (headers["content-type"] == "application/json") is not binary
        assert binary or json.loads(answer)["outputs"][0]["data"] == [1.0 if said is True else 0.0]


@pytest.mark.parametrize("said", [[{"label": "7"}, {"label": "8"}], {"value": 3.1}, "7", 7, {"answer": {"label": "7"}}])
def test_an_answer_without_a_label_costs_its_own_record_only_and_is_never_an_empty_one(said: Any) -> None:
    """As one to a list of pictures, or of rows."""
    answers = [RecordAnswer(200, json.dumps(body).encode()) for body in ({"label": "7", "probabilities": {"7": 0.5}}, said)]
    for wanted in ({"label": False}, {"probability": False}, {"probabilities": False}):
        asked = InferRequest([RecordBody(b"")] * 2, "", wanted)
        _, reply = open_inference.reply(asked, "m", "1", PICTURES, answers)
        assert json.loads(json.loads(reply)["parameters"]["errors"])["1"]["code"] == 500
        with pytest.raises(ProtocolFault, match="is not one label") as fault:
            open_inference.reply(asked, "m", "1", PICTURES, answers[1:])
        assert fault.value.status == 500
    _, reply = open_inference.reply(InferRequest([RecordBody(b"")], "", {"answer": False}), "m", "1", PICTURES, answers[1:])
    assert json.loads(json.loads(reply)["outputs"][0]["data"][0]) == said


KEYS = ["inputs", "shape", "data", "datatype", "parameters", "binary_data_size", "outputs", "name", "instances"]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(LEAVES, lambda values: st.lists(values) | st.dictionaries(st.sampled_from(KEYS), values))


@given(JSON, st.binary(max_size=40), st.integers(0, 400))
def test_no_body_raises_anything_but_a_refusal(content: Any, more: bytes, length: int) -> None:
    for body in (json.dumps(content).encode() + more, json.dumps({"inputs": [content]}).encode() + more, more):
        for read in (
            lambda body=body: open_inference.request(body, str(length), TENSORS),
            lambda body=body: open_inference.request(body, None, PICTURES),
            lambda body=body: kserve_v1.records(body),
        ):
            with suppress(ProtocolFault):
                read()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9))
def test_binary_answers_are_read_back_in_order(said: list[bytes]) -> None:
    answers = [RecordAnswer(200 if i % 3 else 400, body) for i, body in enumerate(said)]
    asked = InferRequest([RecordBody(b"")] * len(said), "mine", {"answer": True})
    headers, body = open_inference.reply(asked, "m", "1", PICTURES, answers)
    length = int(headers[open_inference.LENGTH])
    head, at, elements = json.loads(body[:length]), length, []
    for _ in said:
        (size,) = struct.unpack_from("<I", body, at)
        elements.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(body) == length + head["outputs"][0]["parameters"]["binary_data_size"]
    assert elements == [one.body if one.good else b"" for one in answers]  # whatever bytes they are
    assert head["id"] == "mine"
    assert {int(i) for i in json.loads(head["parameters"]["errors"])} == {i for i in range(len(said)) if i % 3 == 0}


PICTURE = b"\x89PNG\r\n\x1a\n\xff\xfe\x00"


def test_an_answer_of_bytes_is_never_changed() -> None:
    """Where JSON is to hold it, it is that record's error."""
    answers = [RecordAnswer(200, b"text"), RecordAnswer(200, PICTURE, "image/png")]
    told = json.loads(kserve_v1.reply(answers))
    assert told == {"predictions": ["text", {"error": {"code": 500, "message": NO_TEXT}}]}
    asked = InferRequest([RecordBody(b"")] * 2, "", {"answer": False})
    told = json.loads(open_inference.reply(asked, "m", "1", ModelInput(), answers)[1])
    assert told["outputs"][0]["data"] == ["text", ""]
    assert json.loads(told["parameters"]["errors"]) == {"1": {"code": 500, "message": NO_TEXT}}
    reads = (kserve_v1.reply, lambda one: open_inference.reply(asked, "m", "1", ModelInput(), one))
    for read in reads:
        with pytest.raises(ProtocolFault, match=NO_TEXT) as fault:
            read(answers[1:])
        assert fault.value.status == 500
    written = open_inference_grpc.reply(asked, "m", "1", ModelInput(), answers)
    answer = CLASSES["ModelInferResponse"].FromString(written)
    assert list(answer.outputs[0].contents.bytes_contents) == [b"text", PICTURE]
    raw = open_inference_grpc.reply(replace(asked, outputs={"answer": True}), "m", "1", ModelInput(), answers[1:])
    answer = CLASSES["ModelInferResponse"].FromString(raw)
    assert answer.raw_output_contents[0] == struct.pack("<I", len(PICTURE)) + PICTURE


@pytest.mark.parametrize("said", [b'{"a": NaN}', b"[Infinity]", b"-Infinity", b'{"a": nope}', b""])
def test_v1_never_answers_what_is_no_json(said: bytes) -> None:
    answers = [RecordAnswer(200, b'{"a": 1}', "application/json"), RecordAnswer(200, said, "application/json")]
    told = json.loads(kserve_v1.reply(answers), parse_constant=pytest.fail)
    assert told == {"predictions": [{"a": 1}, {"error": {"code": 500, "message": NO_JSON}}]}
    with pytest.raises(ProtocolFault, match="says that it is JSON"):
        kserve_v1.reply(answers[1:])
    assert json.loads(kserve_v1.reply([RecordAnswer(200, said)])) == {"predictions": [said.decode()]}  # who does not say so


async def test_records_are_answered_in_their_places_on_both_protocols(make_front: MakeFront) -> None:
    front = await make_front(StandIn(likely=True))
    body, length = binary([PNG, b"no picture", PNG])
    answer = await front.client.post("/v2/models/digits/infer", content=body, headers={open_inference.LENGTH: length})
    assert answer.status_code == 200, answer.text
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert outputs.keys() == {"answer", "label", "probability", "probabilities"}
    assert outputs["label"][1] == ""
    assert outputs["label"][0] == outputs["label"][2] != ""
    assert json.loads(answer.json()["parameters"]["errors"])["1"]["code"] == 400
    assert answer.headers["x-request-id"]
    instances = [{"b64": base64.b64encode(one).decode()} for one in (PNG, b"no picture")]
    answer = await front.client.post("/v1/models/digits:predict", json={"instances": instances})
    good, bad = answer.json()["predictions"]
    assert good["label"] == outputs["label"][0]
    assert bad["error"]["code"] == 400


async def test_a_prediction_that_is_a_text_stays_one(make_front: MakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    front = await make_front()
    said = iter([b"42", b"true", b'"quoted"', b"hello", b"42", b'{"a": 1}', b"hello", b"[7]"])
    kinds = iter([b"text/plain; charset=utf-8"] * 4 + [b"application/json"] * 2 + [b""] * 2)

    async def answer(request: BackendRequest) -> BackendAnswer:
        return BackendAnswer(200, [(b"content-type", kind)] if (kind := next(kinds)) else [], next(said))

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    reply = await front.client.post("/v1/models/digits:predict", json={"instances": list(range(8))})
    assert reply.json() == {"predictions": ["42", "true", '"quoted"', "hello", 42, {"a": 1}, "hello", [7]]}


async def test_a_request_to_another_version_is_read_as_that_wants_it(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await make_front()
    cards = {("digits", ""): ModelCard("picture"), ("digits", "2.0"): ModelCard("text")}
    monkeypatch.setattr(front.gateway, "_cards", cards)
    asked = []

    async def answer(request: BackendRequest) -> BackendAnswer:
        asked.append((request.version, request.body))
        return BackendAnswer(200, [], b"so")

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    text = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}
    for version in ("", "/versions/2.0"):
        assert (await front.client.post(f"/v2/models/digits{version}/infer", json=text)).status_code == 200
    assert asked == [("", b'{"b64": "aGk="}'), ("2.0", b"aGk=")]


async def test_the_versions_of_a_server_behind_are_known_or_not_read(make_front: MakeFront) -> None:
    """Another version may want its input in another form."""
    server = StandIn(others={"2.0": "newer.mar"})
    front = await make_front(server)
    assert (front.gateway.models["digits"].version, *front.gateway.backend.others) == ("1.0", ("digits", "2.0"))
    for version, status in (("", 200), ("/versions/1.0", 200), ("/versions/2.0", 200), ("/versions/3.0", 404)):
        for what in ("", "/ready", "/config"):
            assert (await front.client.get(f"/v2/models/digits{version}{what}")).status_code == status, (version, what)
    assert (await front.client.get("/v2/models/digits/versions/2.0")).json()["versions"] == ["1.0", "2.0"]
    assert (await front.client.get("/v2/models/digits/versions/2.0/stats")).status_code == 404  # they count every version's
    text = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}
    front.backend._looked_at -= 60  # 9.0 makes it look again, and once only
    for version, status in (("1.0", 200), ("2.0", 200), ("9.0", 404), ("9.0", 404)):
        answer = await front.client.post(f"/v2/models/digits/versions/{version}/infer", json=text)
        assert answer.status_code == status, answer.text
    assert len(server.seen) == 2
    assert front.backend.looks == 2
    assert (await front.client.post("/v2/models/digits/infer?a=b", json=text)).status_code == 200
    assert server.seen.pop().target == "/predictions/digits/1.0?a=b"  # another may become the default meanwhile
    assert (await front.predict(b"picture")).status_code == 200
    assert server.seen.pop().target == "/predictions/digits"
    server.others["9.0"] = "newest.mar"
    front.backend._looked_at -= 60
    assert (await front.client.post("/v2/models/digits/versions/9.0/infer", json=text)).status_code == 200
    front.record = None
    await front.gateway.refresh(0)
    answer = await front.client.post("/v2/models/digits/versions/10.0/infer", json=text)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_several_instances_of_v1_go_to_the_version_that_was_the_default_as_they_came(make_front: MakeFront) -> None:
    """Another one may become the default between two of them. One alone goes to what is the default then."""
    front = await make_front()
    for count, path in ((3, "/predictions/digits/1.0"), (1, "/predictions/digits")):
        reply = await front.client.post("/v1/models/digits:predict", json={"instances": ["text"] * count})
        assert reply.status_code == 200
        assert [seen.target for seen in front.server.seen] == [path] * count
        front.server.seen.clear()


async def test_a_server_that_knows_versions_is_told_which_one_a_request_was_read_for(make_front: MakeFront) -> None:
    """Another one may have become the default since the gateway looked; MMS has one only, and another path."""
    front = await make_front(StandIn(script=deque(["answer", "moved", "answer"])))
    text = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}

    async def asked() -> tuple[int, str]:
        answer = await front.client.post("/v2/models/digits/infer", json=text)
        return answer.status_code, front.server.seen.pop().target

    assert await asked() == (200, "/predictions/digits/1.0")
    assert await asked() == (503, "/predictions/digits/1.0")
    assert front.backend.upstream is not None
    front.backend.upstream.record = replace(front.backend.upstream.record, kind="mms")
    assert await asked() == (200, "/predictions/digits")
    front.backend.upstream.record = replace(front.backend.upstream.record, kind="torchserve")
    front.server.models = {}
    assert await asked() == (404, "/predictions/digits/1.0")


@pytest.mark.parametrize("kind", ["mms", "triton"])
async def test_a_server_that_reads_no_version_answers_for_none_that_it_has_not(make_front: MakeFront, kind: Kind) -> None:
    """It would answer with the one that it has."""
    front = await make_front()
    assert front.backend.upstream is not None
    front.backend.upstream.record = replace(front.backend.upstream.record, kind=kind)
    assert (await front.client.post("/predictions/digits/9.9", content=b"x")).status_code == 404
    assert (await front.client.post("/v2/models/digits/versions/9.9/generate", json={"text_input": "x"})).status_code == 404
    read = BackendRequest("digits", math.inf, read_for=ReadFor("9.9", lambda card: True), target="/predictions/digits")
    with pytest.raises(Refused, match="takes something else") as refused:
        await front.backend.answer(read)
    assert (refused.value.status, front.server.seen) == (503, [])
    assert (await front.client.post("/predictions/digits/1.0", content=b"x")).status_code == 200
    assert (await front.client.post("/predictions/digits", content=b"x")).status_code == 200


async def test_a_reply_has_the_outputs_of_the_model_that_was_asked(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may be the default by then."""
    front = await make_front()
    shown = ModelCard("text", outputs=(("sum", "float32", (2,)),))
    monkeypatch.setattr(front.gateway, "_cards", {("digits", ""): shown})
    before = front.gateway.models["digits"].version

    async def answer(request: BackendRequest) -> BackendAnswer:
        other = replace(front.gateway.models["digits"], version="9.0")
        front.gateway._follow({"digits": other}, {("digits", ""): ModelCard()})
        return BackendAnswer(200, [], b'{"sum": [1, 2]}')

    monkeypatch.setattr(front.gateway.backend, "answer", answer)
    text = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    reply = (await front.client.post("/v2/models/digits/infer", json=text)).json()
    assert (reply.get("model_version"), reply["outputs"][0]["data"]) == (before, [1, 2])


async def test_a_single_record_that_fails_and_what_is_no_request_are_errors_in_their_form(make_front: MakeFront) -> None:
    front = await make_front(StandIn(likely=True))
    body, length = binary([b"no picture"])
    for answer, status in (
        (await front.client.post("/v2/models/digits/infer", content=body, headers={open_inference.LENGTH: length}), 400),
        (await front.client.post("/v2/models/digits/infer", content=b"{"), 400),
        (await front.client.post("/v2/models/nobody/infer", content=body, headers={open_inference.LENGTH: length}), 404),
        (await front.client.post("/v1/models/nobody:predict", json={"instances": [1, 2]}), 404),
        (await front.client.post("/v1/models/digits:predict", content=b"[]"), 400),
        (await front.client.get("/v2/models/nobody"), 404),
        (await front.client.get("/v2/models/digits/versions/77"), 404),
        (await front.client.get("/v1/models/nobody"), 404),
    ):
        assert answer.status_code == status, answer.text
        assert isinstance(answer.json()["error"], str)
    assert front.gateway.body_memory.now_bytes == 0


async def test_the_servers_and_the_models_state(make_front: MakeFront) -> None:
    front = await make_front()
    assert (await front.client.get("/v2")).json()["extensions"] == [*open_inference.EXTENSIONS]
    assert (await front.client.get("/v2/health/live")).status_code == 200
    assert (await front.client.get("/v2/health/ready")).status_code == 200
    assert (await front.client.get("/v2/models/digits/ready")).json() == {"name": "digits", "ready": True}
    described = (await front.client.get("/v2/models/digits")).json()
    assert described["inputs"] == [{"name": "input", "datatype": "BYTES", "shape": [-1, 1]}]
    assert (await front.client.get("/v2/models/digits?version=7")).json() == described
    paths = (await front.client.get("/openapi.json")).json()["paths"]
    assert [given["name"] for given in paths["/v2/models/{model}"]["get"]["parameters"]] == ["model"]
    assert (await front.client.get("/")).json() == {"status": "alive"}
    assert (await front.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})).text.startswith("<!doctype html>")
    assert "digits" in (await front.client.get("/v1/models")).json()["models"]
    assert (await front.client.get("/v1/models/digits")).json() == {"name": "digits", "ready": True}


async def test_many_records_never_fill_the_queue_themselves(make_front: MakeFront) -> None:
    front = await make_front(StandIn(takes_s=(0.01, 0.02)), in_flight=2, queued=1)
    body, length = binary([b"%d" % i for i in range(20)])
    answer = await front.client.post("/v2/models/digits/infer", content=body, headers={open_inference.LENGTH: length})
    assert answer.status_code == 200
    assert "parameters" not in answer.json()
    assert sorted(seen.body for seen in front.server.seen) == sorted(b"%d" % i for i in range(20))
    assert len({seen.headers["x-request-id"] for seen in front.server.seen}) == 20


async def test_sagemakers_calls_reach_the_one_model_or_the_one_that_is_named(make_front: MakeFront) -> None:
    front = await make_front()
    assert (await front.client.get("/ping")).status_code == 200
    answer = await front.client.post("/invocations", content=b"x", headers={"accept": "application/json"})
    assert (answer.status_code, answer.json()["label"]) == (200, "7")
    assert front.server.seen[0].target == "/predictions/digits"
    front = await make_front(StandIn(models={"digits": 1, "captions": 1}))
    answer = await front.client.post("/invocations", content=b"x")
    assert answer.status_code == 404
    assert "--default-model" in answer.json()["error"]["message"]
    front = await make_front(StandIn(models={"digits": 1, "captions": 1}), default_model="captions")
    assert (await front.client.post("/invocations", content=b"x")).status_code == 200
    assert front.server.seen[0].target == "/predictions/captions"
    asked = "model_name=digits&model_name=captions"  # TorchServe's way to name one: the first counts
    assert (await front.client.post(f"/invocations?{asked}", content=b"x")).status_code == 200
    assert front.server.seen[1].target == f"/predictions/digits?{asked}"
    assert (await front.client.post("/invocations?model_name=nobody", content=b"x")).status_code == 404
    for target, status in (("captions.tar.gz", 200), ("captions", 200), ("digits.tar.gz", 400)):
        headers = {"x-amzn-sagemaker-target-model": target}
        assert (await front.client.post("/invocations", content=b"x", headers=headers)).status_code == status


SCORES, OWN = [0.04, 0.95, 0.01], [-1, 2.5, -3.0]  # of the stand-in


def with_card(folder: Path, **scores: Any) -> None:
    """An archive of digits that gives every score."""
    model = {"handler": "image_classifier", "labels": ["1", "7", "9"]}
    with zipfile.ZipFile(folder / "digits.mar", "w") as mar:
        mar.writestr("slotwise.json", json.dumps({"model": model, "scores": scores}))


async def test_every_score_and_the_graphs_own_output_are_tensors(make_front: MakeFront, tmp_path: Path) -> None:
    with_card(tmp_path, output="Plus214_Output_0")
    front = await make_front(StandIn(likely=True))
    described = {tensor["name"]: tensor for tensor in (await front.client.get("/v2/models/digits")).json()["outputs"]}
    for name in ("scores", "Plus214_Output_0"):
        assert described[name] == {"name": name, "datatype": "FP32", "shape": [-1, 3]}
    body, length = binary([PNG, b"no picture", PNG])
    answer = await front.client.post("/v2/models/digits/infer", content=body, headers={open_inference.LENGTH: length})
    outputs = {output["name"]: output for output in answer.json()["outputs"]}
    assert (outputs["scores"]["shape"], outputs["Plus214_Output_0"]["shape"]) == ([3, 3], [3, 3])
    assert outputs["scores"]["data"] == [*SCORES, 0, 0, 0, *SCORES]
    assert outputs["Plus214_Output_0"]["data"] == [*OWN, 0, 0, 0, *OWN]
    assert outputs["label"]["data"] == ["7", "", "7"]
    assert json.loads(outputs["answer"]["data"][0]) == {"label": "7", "probabilities": {"7": 0.95, "1": 0.04, "9": 0.01}}
    assert json.loads(answer.json()["parameters"]["errors"])["1"]["code"] == 400
    asked = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["aGk="]}]}
    for wanted, header in (("label", None), ("scores", "all")):
        front.server.seen.clear()
        content = {**asked, "outputs": [{"name": wanted}]}
        await front.client.post("/v2/models/digits/infer", json=content, headers={"x-scores": "all"})
        assert [seen.headers.get("x-scores") for seen in front.server.seen] == [header]


async def test_a_model_that_gives_no_scores_is_an_error_and_never_zeros(make_front: MakeFront, tmp_path: Path) -> None:
    with_card(tmp_path, output="Plus214_Output_0")
    front = await make_front(StandIn(likely=True, scores=False))
    body, length = binary([PNG, PNG])
    answer = await front.client.post("/v2/models/digits/infer", content=body, headers={open_inference.LENGTH: length})
    assert (answer.status_code, "scores" in answer.json()["error"]) == (500, True)


@pytest.mark.parametrize("numbers", [None, [], "text", [1, "2", 3], [1, 2], [1e39, 0, 0], [True, 0, 0], [float("nan"), 0, 0]])
def test_scores_that_fit_nothing_cost_their_own_record_only(numbers: Any) -> None:
    model = ModelInput("picture", (), True, 3, "own")
    good, bad = ({"answer": {"label": "7"}, "scores": scores} for scores in ([0, 1, 0], numbers))
    asked = infer_request([RecordBody(b"")] * 2, "", {"scores": False, "own": True}, model)
    answers = [RecordAnswer(200, json.dumps(body).encode()) for body in (good, bad, good)]
    headers, reply = open_inference.reply(asked, "m", "1", model, answers)
    head = json.loads(reply[: int(headers[open_inference.LENGTH])])
    assert list(json.loads(head["parameters"]["errors"])) == ["1"]
    assert head["outputs"][0]["data"] == [0, 1, 0, 0, 0, 0, 0, 1, 0]
    assert np.frombuffer(reply[-36:], "<f4").tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 0]
    with pytest.raises(ProtocolFault, match="no scores") as fault:
        open_inference.reply(asked, "m", "1", model, answers[1:2])
    assert fault.value.status == 500


def test_a_graphs_name_that_means_something_else_here_is_not_offered() -> None:
    model = ModelInput("tensor", (1,), True, 2, "probabilities")
    described = {tensor["name"]: tensor["datatype"] for tensor in open_inference.metadata("m", ["1"], model)["outputs"]}
    assert described["probabilities"] == "BYTES"
    assert "scores" in described


def test_an_answer_in_the_shape_of_mms_has_its_label_and_probabilities() -> None:
    asked = infer_request([RecordBody(b"")], "", {"label": False, "probability": False}, PICTURES)
    answer = RecordAnswer(200, b'[{"probability": 0.9, "class": "n1 cat"}, {"probability": 0.1, "class": "n2 dog"}]')
    _, reply = open_inference.reply(asked, "m", "1", PICTURES, [answer])
    assert [output["data"] for output in json.loads(reply)["outputs"]] == [["n1 cat"], [0.9]]
