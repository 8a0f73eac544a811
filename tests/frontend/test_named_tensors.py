"""V2's tensors one to one: each input's rows become records, each output's values stand in their rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.frontend.grpc import open_inference as over_grpc
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.protocols import open_inference
from slotwise.frontend.protocols.records import ModelInput, ProtocolFault, RecordAnswer
from slotwise.worker.labels import decimals

MODEL = ModelInput(
    "tensors",
    inputs=[("user", "float32", (2,)), ("count", "int64", ()), ("flags", "bool", (1, 2))],
    outputs=[("sum", "float32", (3,)), ("best", "int64", ())],
)


def sent(users: Any, counts: Any, flags: Any, **changes: Any) -> list[dict[str, Any]]:
    return [
        {"name": "user", "datatype": "FP32", "shape": list(np.shape(users)), "data": users, **changes},
        {"name": "count", "datatype": "INT64", "shape": [len(counts)], "data": counts},
        {"name": "flags", "datatype": "BOOL", "shape": [len(flags), 1, 2], "data": flags},
    ]


def read(inputs: Any, **more: Any) -> Any:
    return open_inference.request(json.dumps({"inputs": inputs, **more}).encode(), None, MODEL)


GOOD = sent([[1, 2.5], [3, 4]], [7, 8], [[[True, False]], [[False, True]]])


def test_the_metadata_has_every_tensor() -> None:
    told = open_inference.metadata("net", ["1.0"], MODEL)
    assert told["inputs"][1:] == [
        {"name": "count", "datatype": "INT64", "shape": [-1]}, {"name": "flags", "datatype": "BOOL", "shape": [-1, 1, 2]}
    ]  # fmt: skip
    assert told["outputs"] == [
        {"name": "sum", "datatype": "FP32", "shape": [-1, 3]}, {"name": "best", "datatype": "INT64", "shape": [-1]}
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
                  st.integers(-(2**63), 2**63 - 1), st.lists(st.booleans(), min_size=2, max_size=2)), min_size=1, max_size=9
    ),
    st.booleans(),
)  # fmt: skip
def test_rows_become_records_exactly_in_lists_and_as_binary_data(rows: list[Any], as_binary: bool) -> None:
    users, counts, flags = ([row[i] for row in rows] for i in range(3))
    inputs, binary = sent(users, counts, [[one] for one in flags]), b""
    if as_binary:
        for tensor, kind in zip(inputs, ("<f4", "<i8", "?"), strict=True):
            data = np.array(tensor.pop("data"), kind).tobytes()
            tensor["parameters"], binary = {"binary_data_size": len(data)}, binary + data
    head = json.dumps({"inputs": inputs}).encode()
    asked = open_inference.request(head + binary, str(len(head)) if as_binary else None, MODEL)
    expected = [{"user": user, "count": count, "flags": [flag]} for user, count, flag in rows]
    assert [json.loads(record.body) for record in asked.records] == expected


def test_outputs_are_tensors_and_what_failed_says_so() -> None:
    asked = read(GOOD)
    answers = [
        RecordAnswer(200, b'{"sum": [0.1, 2, 3], "best": 9007199254740993}'),
        RecordAnswer(422, b'{"error": {"message": "no"}}'),
    ]
    _, body = open_inference.reply(asked, "net", "1.0", MODEL, answers)
    told = json.loads(body)
    assert told["outputs"] == [
        {"name": "sum", "datatype": "FP32", "shape": [2, 3], "data": [0.1, 2, 3, 0, 0, 0]},
        {"name": "best", "datatype": "INT64", "shape": [2], "data": [9007199254740993, 0]},
    ]
    assert json.loads(told["parameters"]["errors"]) == {"1": {"code": 422, "message": "no"}}
    asked = read(GOOD, outputs=[{"name": "best", "parameters": {"binary_data": True}}])
    headers, body = open_inference.reply(asked, "net", "1.0", MODEL, answers)
    assert np.frombuffer(body[int(headers[open_inference.LENGTH]) :], "<i8").tolist() == [9007199254740993, 0]


@pytest.mark.parametrize(
    "answer", [b'{"sum": [1, 2], "best": 1}', b'{"sum": [1, 2, 3]}', b"[1]", b"text", b'{"sum": [1, 2, [3]], "best": 1}']
)
def test_an_answer_without_its_outputs_is_an_error_and_never_zeros(answer: bytes) -> None:
    good = RecordAnswer(200, b'{"sum": [1, 2, 3], "best": 1}')
    _, body = open_inference.reply(read(GOOD), "net", "1.0", MODEL, [good, RecordAnswer(200, answer)])
    assert json.loads(json.loads(body)["parameters"]["errors"])["1"]["code"] == 500
    with pytest.raises(ProtocolFault):
        open_inference.reply(read(GOOD), "net", "1.0", MODEL, [RecordAnswer(200, answer)])


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("int64", [1.7, 2**63, "1", None, True, math.nan]),
        ("uint8", [-1, 300, 0.5]),
        ("bool", [2, 0.0, "true"]),
        ("float32", [2**24 + 1, 16777217.0, 1e300, True, math.nan, math.inf, 10**400]),
        ("float16", [2049, 65600.0]),
        ("float64", [2**53 + 1, 10**400]),
    ],
)
def test_a_number_that_an_outputs_type_does_not_hold_is_an_error_and_never_another(dtype: str, numbers: list[Any]) -> None:
    model = replace(MODEL, outputs=[("out", dtype, (1,))])
    for number in numbers:
        answer = RecordAnswer(200, json.dumps({"out": [number]}).encode())
        for binary in (False, True):
            content = {"inputs": GOOD, "parameters": {"binary_data_output": binary}}
            asked = open_inference.request(json.dumps(content).encode(), None, model)
            with pytest.raises(ProtocolFault):
                open_inference.reply(asked, "net", "1", model, [answer])


@pytest.mark.parametrize(
    ("dtype", "number", "told"),
    [("int64", 7.0, 7), ("int64", -(2**63), -(2**63)), ("bool", 1, True), ("float32", 2**25, 2**25), ("float32", 0.1, 0.1)],
)
def test_what_an_outputs_type_holds_is_told(dtype: str, number: Any, told: Any) -> None:
    model = replace(MODEL, outputs=[("out", dtype, (1,))])
    answers = [RecordAnswer(200, json.dumps({"out": [number]}).encode())]
    asked = open_inference.request(json.dumps({"inputs": GOOD}).encode(), None, model)
    _, body = open_inference.reply(asked, "net", "1", model, answers)
    assert json.dumps(json.loads(body)["outputs"][0]["data"]) == json.dumps([told])
    over_grpc.reply(asked, "net", "1", model, answers)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (GOOD[:2], "the input 'flags' is missing"),
        ([*GOOD, {**GOOD[0], "name": "usr"}], "there is no input 'usr'"),
        ([*GOOD, GOOD[0]], "the input 'user' is there twice"),
        (sent([[1, 2, 3]] * 2, [7, 8], [[[True, False]]] * 2), "the input 'user' must be FP32 of the shape [n, 2]"),
        (sent([[1, 2]] * 2, [7, 8], [[[True, False]]] * 2, datatype="FP64"), "the input 'user' must be FP32"),
        (sent([[1, 2]] * 2, [7], [[[True, False]]] * 2), "the input 'count' has 1 records, and 'user' has others"),
        (sent([[1, "a"]] * 2, [7, 8], [[[True, False]]] * 2), "the data are no FP32"),
        (sent([[1, 2]] * 2, [7.5, 8], [[[True, False]]] * 2), "the data are no INT64: a number is not whole"),
        (sent([[1, 2]] * 2, [float("nan"), 8], [[[True, False]]] * 2), "the data are no INT64"),
        (sent([[1, 2]] * 2, [1e19, 8], [[[True, False]]] * 2), "the data are no INT64"),
        (sent([[1, 2]] * 2, [9007199254740993.0, 8], [[[True, False]]] * 2), "write whole numbers beyond 2**53"),
        (sent([[1, 2]] * 2, [7, 8], [[[True, 2]]] * 2), "the data are no BOOL"),
        (sent([[1, 2]] * 2, [7, 8], [[[True, False]]] * 2, parameters={"binary_data_size": 16}), "one of them"),
    ],
)
def test_what_is_no_request_is_named(inputs: Any, said: str) -> None:
    with pytest.raises(ProtocolFault) as raised:
        read(inputs)
    assert said in raised.value.message


def test_whole_numbers_may_be_written_as_fractions() -> None:
    for number in (7, 2**53 - 1, 1 - 2**53):
        asked = read(sent([[1, 2]], [float(number)], [[[1, 0]]]))
        assert json.loads(asked.records[0].body) == {"user": [1, 2], "count": number, "flags": [[True, False]]}


@pytest.mark.parametrize("raw", [False, True])
def test_over_grpc_they_are_the_same(raw: bool) -> None:
    message = CLASSES["ModelInferRequest"](model_name="net")
    for tensor, contents, kind in zip(GOOD, ("fp32", "int64", "bool"), ("<f4", "<i8", "?"), strict=True):
        values = np.array(tensor["data"], kind)
        added = message.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        if raw:
            message.raw_input_contents.append(values.tobytes())
        else:
            getattr(added.contents, f"{contents}_contents").extend(values.ravel().tolist())
    asked = over_grpc.request(message, MODEL)
    assert asked.records == read(GOOD).records
    assert over_grpc.reading_bytes(message, MODEL) > sum(len(record.body) for record in asked.records)
    answers = [RecordAnswer(200, b'{"sum": [0.5, 2, 3], "best": 7}')] * 2
    answer = CLASSES["ModelInferResponse"].FromString(over_grpc.reply(asked, "net", "1.0", MODEL, answers))
    assert [(one.name, one.datatype, list(one.shape)) for one in answer.outputs] == [
        ("sum", "FP32", [2, 3]),
        ("best", "INT64", [2]),
    ]
    if raw:
        assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [0.5, 2, 3, 0.5, 2, 3]
    else:
        assert list(answer.outputs[1].contents.int64_contents) == [7, 7]


def test_over_grpc_a_type_without_typed_contents_makes_all_outputs_raw() -> None:
    model = replace(MODEL, outputs=[("half", "float16", (2,)), ("best", "int64", ())])
    message = CLASSES["ModelInferRequest"](model_name="net")
    for tensor, contents in zip(GOOD, ("fp32", "int64", "bool"), strict=True):
        added = message.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        getattr(added.contents, f"{contents}_contents").extend(np.ravel(tensor["data"]).tolist())
    asked = over_grpc.request(message, model)
    written = over_grpc.reply(asked, "net", "1.0", model, [RecordAnswer(200, b'{"half": [0.5, 2], "best": 7}')] * 2)
    answer = CLASSES["ModelInferResponse"].FromString(written)
    assert [one.datatype for one in answer.outputs] == ["FP16", "INT64"]
    halves, best = answer.raw_output_contents
    assert np.frombuffer(halves, "<f2").tolist() == [0.5, 2, 0.5, 2]
    assert np.frombuffer(best, "<i8").tolist() == [7, 7]


@pytest.mark.parametrize("number", [123456789.0, 3.3e15, 1e30, -1e-30, 3.4028234663852886e38, -3.4028234663852886e38, 0.1])
def test_every_number_of_float32_is_answered_as_it_is_written(number: float) -> None:
    """The handler writes it in as few digits as tell it apart, so that a large one is another whole number to who reads it."""
    model = ModelInput("tensors", inputs=MODEL.inputs, outputs=[("out", "float32", ())])
    answers = [RecordAnswer(200, json.dumps({"out": decimals(np.float32(number))[0]}).encode())]
    for as_binary in (False, True):
        content = {"inputs": sent([[1, 2]], [7], [[[1, 0]]]), "parameters": {"binary_data_output": as_binary}}
        asked = open_inference.request(json.dumps(content).encode(), None, model)
        headers, body = open_inference.reply(asked, "net", "1.0", model, answers)
        length = int(headers.get(open_inference.LENGTH, len(body)))
        said = np.frombuffer(body[length:], "<f4") if as_binary else json.loads(body)["outputs"][0]["data"]
        assert np.float32(said).tolist() == [np.float32(number)]
    message = over_grpc.reply(replace(asked, outputs={"out": False}), "net", "1.0", model, answers)
    (tensor,) = CLASSES["ModelInferResponse"].FromString(message).outputs
    assert list(tensor.contents.fp32_contents) == [np.float32(number)]


@pytest.mark.parametrize("numbers", [[2**63 + 1, 1], [7, 2**64 - 1], [2**63 - 1, 2**63]])
def test_whole_numbers_on_both_sides_of_two_to_the_63_stay_exact(numbers: list[int]) -> None:
    """Numpy alone would make floats of such a list."""
    model = ModelInput("tensors", inputs=[("ids", "uint64", (2,))], outputs=[("out", "uint64", (2,)), ("one", "uint64", ())])
    given = {"name": "ids", "datatype": "UINT64", "shape": [1, 2], "data": numbers}
    answers = [RecordAnswer(200, json.dumps({"out": numbers, "one": numbers[0]}).encode())] * 2
    for as_binary in (False, True):
        content = {"inputs": [given], "parameters": {"binary_data_output": as_binary}}
        asked = open_inference.request(json.dumps(content).encode(), None, model)
        assert json.loads(asked.records[0].body) == {"ids": numbers}
        headers, body = open_inference.reply(asked, "net", "1.0", model, answers)
        if as_binary:
            said = np.frombuffer(body[int(headers[open_inference.LENGTH]) :], "<u8").tolist()
            assert said == [*numbers * 2, *[numbers[0]] * 2]
        else:
            assert [output["data"] for output in json.loads(body)["outputs"]] == [numbers * 2, [numbers[0]] * 2]
    for raw in (False, True):
        message = CLASSES["ModelInferRequest"](model_name="net")
        tensor = message.inputs.add(name="ids", datatype="UINT64", shape=[1, 2])
        if raw:
            message.raw_input_contents.append(np.array(numbers, "<u8").tobytes())
        else:
            tensor.contents.uint64_contents.extend(numbers)
        asked = over_grpc.request(message, model)
        assert json.loads(asked.records[0].body) == {"ids": numbers}
        answer = CLASSES["ModelInferResponse"].FromString(over_grpc.reply(asked, "net", "1.0", model, answers))
        if raw:
            assert np.frombuffer(answer.raw_output_contents[0], "<u8").tolist() == numbers * 2
        else:
            assert list(answer.outputs[0].contents.uint64_contents) == numbers * 2
