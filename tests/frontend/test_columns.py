"""A table's columns as tensors of the Open Inference Protocol, over REST and gRPC; the model is its card alone."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from slotwise.frontend.grpc import open_inference as open_inference_grpc
from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.protocols import open_inference
from slotwise.frontend.protocols.records import JSON, ModelInput, ProtocolFault
from tests.frontend.test_memory import peak_of

PEOPLE = ModelInput("table", columns=(("age", "int"), ("income", "float"), ("city", "text"), ("member", "bool")))
SIZES = ModelInput("table", columns=(("length", "float"), ("width", "float")), classes=True, scores=3)
NAN, INFINITE = float("nan"), float("inf")
TENSORS: list[tuple[str, str, list[Any]]] = [
    ("city", "BYTES", ["Oslo", "Rome \"north\"", ""]),
    ("age", "INT64", [41, 2**53 + 1, -1]),
    ("income", "FP64", [0.1, NAN, INFINITE]),
    ("member", "BOOL", [True, False, True]),
]  # fmt: skip
ROWS = [
    {"city": "Oslo", "age": 41, "income": 0.1, "member": True},
    {"city": 'Rome "north"', "age": 2**53 + 1, "income": None, "member": False},
    {"city": "", "age": -1, "income": INFINITE, "member": True},
]


def packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [value if isinstance(value, bytes) else value.encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array(values, {"FP64": "<f8", "INT64": "<i8", "BOOL": "?", "FP32": "<f4"}[datatype]).tobytes()


def rest(
    tensors: list[tuple[str, str, list[Any]]], model: ModelInput = PEOPLE, *, binary: tuple[str, ...] = (), wide: bool = False
) -> list[Any]:
    inputs, data = [], b""
    for name, datatype, values in tensors:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [len(values), *[1] * wide]}
        if name in binary:
            part = packed(datatype, values)
            tensor["parameters"] = {"binary_data_size": len(part)}
            data += part
        else:
            tensor["data"] = [[value] for value in values] if wide else values
        inputs.append(tensor)
    head = json.dumps({"inputs": inputs}).encode()
    asked = open_inference.request(head + data, str(len(head)) if data else None, model)
    assert {record.content_type for record in asked.records} == {JSON}
    return [json.loads(record.body) for record in asked.records]


def without_infinity(values: list[Any]) -> list[Any]:
    return [1.5 if value in (NAN, INFINITE) or value != value else value for value in values]


@pytest.mark.parametrize("binary", [(), ("city", "age", "income", "member"), ("income",), ("city", "member")])
@pytest.mark.parametrize("wide", [False, True])
def test_a_tensor_a_column_becomes_a_record_a_row(binary: tuple[str, ...], wide: bool) -> None:
    tensors = [(n, d, v if "income" in binary else without_infinity(v)) for n, d, v in TENSORS]
    rows = [dict(row) for row in ROWS]
    if "income" not in binary:
        rows[1]["income"] = rows[2]["income"] = 1.5
    assert rest(tensors, binary=binary, wide=wide) == rows


@pytest.mark.parametrize(("datatype", "number"), [("FP32", 2**24 + 1), ("FP64", 2**53 + 1), ("FP16", 2049.0)])
def test_no_whole_number_becomes_the_nearest_one_of_its_type(datatype: str, number: float) -> None:
    for name, taken in (("age", False), ("income", True)):
        tensors = [(other, kind, values[:1]) for other, kind, values in TENSORS if other != name]
        if taken:
            assert len(rest([*tensors, (name, datatype, [number])])) == 1
            continue
        with pytest.raises(ProtocolFault, match=f"{datatype} does not hold every number"):
            rest([*tensors, (name, datatype, [number])])
    assert rest([("age", datatype, [2048.0, 7])], ModelInput("table", columns=(("age", "int"),))) == [{"age": 2048}, {"age": 7}]
    model = ModelInput("table", columns=(("age", "int"), ("income", "float")))
    head = {"inputs": [{"name": "all", "datatype": datatype, "shape": [1, 2], "data": [number, 0.1]}]}
    with pytest.raises(ProtocolFault, match=f"{datatype} does not hold every number"):
        open_inference.request(json.dumps(head).encode(), None, model)


def test_one_tensor_of_numbers_is_all_columns_in_order() -> None:
    head = {"inputs": [{"name": "predict", "datatype": "FP32", "shape": [2, 2], "data": [[0.5, 1.5], [2.5, 3.5]]}]}
    asked = open_inference.request(json.dumps(head).encode(), None, SIZES)
    assert [json.loads(record.body) for record in asked.records] == [[0.5, 1.5], [2.5, 3.5]]
    head["inputs"][0]["shape"], head["inputs"][0]["data"] = [1, 3], [1, 2, 3]
    with pytest.raises(ProtocolFault, match=r"shape must be \[n, 2\], or each column an input: length, width"):
        open_inference.request(json.dumps(head).encode(), None, SIZES)


def test_bytes_are_records_unless_they_are_a_column() -> None:
    head = {"inputs": [{"name": "rows", "datatype": "BYTES", "shape": [1], "data": ['{"length": 1, "width": 2}']}]}
    (record,) = open_inference.request(json.dumps(head).encode(), None, SIZES).records
    assert record.body == b'{"length": 1, "width": 2}'
    texts = ModelInput("table", columns=(("city", "text"),))
    assert rest([("city", "BYTES", ["Oslo"])], texts) == [{"city": "Oslo"}]


def test_what_is_no_utf_8_is_left_to_the_model_to_refuse() -> None:
    (row,) = rest([("city", "BYTES", [b"\xff"])], binary=("city",))
    with pytest.raises(UnicodeEncodeError):
        row["city"].encode()


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([("age", "INT64", [1]), ("agee", "INT64", [1])], "there is no column 'agee': there are 'age', 'income'"),
        ([("age", "INT64", [1]), ("age", "INT64", [1])], "the column 'age' is there twice"),
        ([("age", "INT64", [1]), ("income", "FP64", [1, 2])], "the column 'income' has 2 rows"),
        ([("age", "INT64", ["a"]), ("income", "FP64", [1])], "the data are no INT64"),
        ([("age", "INT64", []), ("income", "FP64", [])], "the request has no records"),
        ([("city", "BYTES", [7])], "BYTES as JSON are texts"),
        ([("age", "TEXT", [7])], "the input's datatype is none of this protocol"),
        ([("age", "INT64", [1] * 1025)], "at most 1024"),
    ],
)
def test_what_is_wrong_with_columns(tensors: list[tuple[str, str, list[Any]]], said: str) -> None:
    with pytest.raises(ProtocolFault) as fault:
        rest(tensors)
    assert said in fault.value.message


def test_binary_data_that_does_not_fit() -> None:
    tensor = {"name": "age", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    for data, size in ((b"1234567", 8), (b"123456789", 8), (b"12345678", -1), (b"12345678", "8")):
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
        with pytest.raises(ProtocolFault):
            open_inference.request(head + data, str(len(head)), PEOPLE)


@pytest.mark.parametrize("raw", [False, True])
def test_grpc_has_the_same_columns(raw: bool) -> None:
    message = CLASSES["ModelInferRequest"](model_name="people")
    fields = {"BYTES": "bytes_contents", "INT64": "int64_contents", "FP64": "fp64_contents", "BOOL": "bool_contents"}
    for name, datatype, values in TENSORS:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        if raw:
            message.raw_input_contents.append(packed(datatype, values))
        else:
            getattr(tensor.contents, fields[datatype]).extend(v.encode() if isinstance(v, str) else v for v in values)
    asked = open_inference_grpc.request(message, PEOPLE)
    assert [json.loads(record.body) for record in asked.records] == ROWS
    assert peak_of(lambda: open_inference_grpc.request(message, PEOPLE)) <= open_inference_grpc.reading_bytes(message, PEOPLE)
    with pytest.raises(ProtocolFault, match="one input"):
        open_inference_grpc.request(message, ModelInput("tensor"))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("count", [2, 300])
def test_reading_columns_takes_no_more_memory_than_was_counted(count: int, binary: bool) -> None:
    model = ModelInput("table", columns=tuple((f"a column with number {i}", "float") for i in range(count)))
    values = (np.arange(1000) / 7).tolist()
    inputs, data = [], b""
    for name, _ in model.columns:
        tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [1000]}
        part = packed("FP32", values)
        inputs.append({**tensor, "parameters": {"binary_data_size": len(part)}} if binary else {**tensor, "data": values})
        data += part if binary else b""
    head = json.dumps({"inputs": inputs}).encode()
    body, length = head + data, str(len(head)) if binary else None
    assert peak_of(lambda: open_inference.request(body, length, model)) <= open_inference.reading_bytes(body, length, model)


def test_the_metadata_names_the_columns() -> None:
    said = open_inference.metadata("people", ["1.0"], PEOPLE)
    assert [(one["name"], one["datatype"], one["shape"]) for one in said["inputs"]] == [
        ("age", "INT64", [-1, 1]), ("income", "FP64", [-1, 1]), ("city", "BYTES", [-1, 1]), ("member", "BOOL", [-1, 1]),
    ]  # fmt: skip
