"""The Open Inference Protocol (V2), REST: tensors in, tensors out; with the binary tensor extension both ways.

BYTES of shape [n] or [n, 1] are n records. A model of tensors takes numbers of shape [n, ...], which are n records, too. The
answer has a row a record, in order: `answer` (what the model said, as JSON), and of a classifier `label`, `probability` and
`probabilities`. A record that fails has an empty row, and `parameters.errors` says which and why.
Source: the Open Inference Protocol's "inference_rest" and Triton's "extension_binary_data".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.gateway.protocols.records import JSON, ModelInput, ProtocolFault, RecordAnswer, RecordBody, limited, parsed

LENGTH = "inference-header-content-length"
NUMBERS = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
MOST_SIDES = 32
LARGEST = 3.4e38  # that FP32 can hold
ANSWERS = {"answer": "BYTES"}
OF_CLASSES = {"label": "BYTES", "probability": "FP32", "probabilities": "BYTES"}


@dataclass(frozen=True)
class InferRequest:
    """One request. identity: the client's id. outputs: the names that are wanted, and which of them as binary data."""

    records: Sequence[RecordBody]
    identity: str
    outputs: Mapping[str, bool]


def output_types(model: ModelInput) -> dict[str, str]:
    """The outputs that a model has, and their datatypes."""
    return ANSWERS | (OF_CLASSES if model.classes else {})


def metadata(name: str, versions: Sequence[str], model: ModelInput) -> dict[str, Any]:
    """What `GET /v2/models/NAME` says."""
    tensor = model.takes == "tensor" and bool(model.shape)
    inputs = [{"name": "input", "datatype": "FP32" if tensor else "BYTES", "shape": [-1, *(model.shape if tensor else [1])]}]
    outputs = [{"name": output, "datatype": kind, "shape": [-1]} for output, kind in output_types(model).items()]
    return {"name": name, "versions": list(versions), "platform": "slotwise", "inputs": inputs, "outputs": outputs}


def request(body: bytes, header_length: str | None, model: ModelInput) -> InferRequest:
    """Read a request. header_length: the header LENGTH, None where there is no binary data. Raises ProtocolFault."""
    length = len(body) if header_length is None else _length(header_length, len(body))
    content = parsed(body[:length])
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise ProtocolFault("the request must have one input")
    identity = content.get("id", "")
    if not isinstance(identity, str):
        raise ProtocolFault("the id is no text")
    records = _records(inputs[0], memoryview(body)[length:], model)
    return InferRequest(records, identity, _wanted(content, model))


def _length(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 12 or int(text) > most:
        raise ProtocolFault("the header Inference-Header-Content-Length does not fit the body")
    return int(text)


def _wanted(content: Mapping[str, Any], model: ModelInput) -> dict[str, bool]:
    known = output_types(model)
    binary = _parameters(content).get("binary_data_output") is True
    outputs = content.get("outputs") or [{"name": name} for name in known]
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise ProtocolFault("outputs is no list of objects")
    wanted = {}
    for output in outputs:
        name = output.get("name")
        if not isinstance(name, str) or name not in known:
            raise ProtocolFault(f"there is no such output; the model has {', '.join(known)}")
        wanted[name] = _parameters(output).get("binary_data", binary) is True
    return wanted


def _parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = of.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ProtocolFault("parameters is no object")
    return parameters


def _records(tensor: Mapping[str, Any], binary: memoryview, model: ModelInput) -> list[RecordBody]:
    datatype, shape = tensor.get("datatype"), tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(side) is int and 0 <= side < 2**40 for side in shape):
        raise ProtocolFault("the input's shape is no list of whole numbers")
    if len(shape) > MOST_SIDES:  # the product of very many would keep this process busy for minutes
        raise ProtocolFault(f"the input's shape has more than {MOST_SIDES} numbers")
    limited(shape[0])
    size = _parameters(tensor).get("binary_data_size")
    if size is not None and size != len(binary):
        raise ProtocolFault(f"binary_data_size is not the {len(binary)} bytes that follow the JSON")
    if size is None and len(binary):
        raise ProtocolFault("bytes follow the JSON, and no input says that they are its own")
    if datatype == "BYTES":
        if math.prod(shape[1:]) != 1:
            raise ProtocolFault("BYTES have the shape [n] or [n, 1]: each element is a record")
        elements = list(_elements(binary)) if size is not None else _texts(tensor, model)
        if len(elements) != shape[0]:
            raise ProtocolFault(f"the shape says {shape[0]} elements, {len(elements)} are there")
        return elements
    if not isinstance(datatype, str) or datatype not in NUMBERS:
        raise ProtocolFault("the input's datatype is none of this protocol")
    if model.takes != "tensor":
        raise ProtocolFault(f"this model takes a {model.takes} a record, as BYTES", 415)
    return _rows(tensor, datatype, shape, binary if size is not None else None, model)


def _elements(binary: memoryview) -> Iterator[RecordBody]:
    """BYTES as binary data: each with its length before it."""
    at = 0
    while at < len(binary):
        if len(binary) - at < 4:
            raise ProtocolFault("the binary data is cut off")
        (length,) = struct.unpack_from("<I", binary, at)
        at += 4
        if len(binary) - at < length:
            raise ProtocolFault("the binary data is cut off")
        yield RecordBody(bytes(binary[at : at + length]))
        at += length


def _texts(tensor: Mapping[str, Any], model: ModelInput) -> list[RecordBody]:
    """BYTES as JSON: texts. A picture can only stand there as base64."""
    texts = _flat(tensor.get("data"))
    if not all(isinstance(text, str) for text in texts):
        raise ProtocolFault("BYTES as JSON are texts")
    if model.takes == "picture" or _parameters(tensor).get("content_type") == "base64":
        return [RecordBody(json.dumps({"b64": text}).encode(), JSON) for text in texts]
    return [RecordBody(text.encode("utf-8", "replace")) for text in texts]


def _rows(
    tensor: Mapping[str, Any], datatype: str, shape: Sequence[int], binary: memoryview | None, model: ModelInput
) -> list[RecordBody]:
    """Numbers: a row a record, as the model takes it (FP32)."""
    if model.shape and list(shape[1:]) != list(model.shape):
        raise ProtocolFault(f"the input's shape must be [n, {', '.join(map(str, model.shape))}]")
    kind, count = np.dtype(NUMBERS[datatype]), math.prod(shape)
    if binary is not None:
        if len(binary) != count * kind.itemsize:
            raise ProtocolFault(f"the shape says {count * kind.itemsize} bytes, {len(binary)} are there")
        values = np.frombuffer(binary, kind)
    else:
        numbers = _flat(tensor.get("data"))
        if len(numbers) != count:
            raise ProtocolFault(f"the shape says {count} numbers, {len(numbers)} are there")
        if not all(type(number) in (int, float) or (datatype == "BOOL" and type(number) is bool) for number in numbers):
            raise ProtocolFault(f"the data are no {datatype}")
        try:
            with np.errstate(all="ignore"):  # 1e300 becomes infinity, which the model refuses
                values = np.asarray(numbers).astype(kind) if datatype[:2] == "FP" else np.asarray(numbers, kind)
        except (ValueError, OverflowError, TypeError):
            raise ProtocolFault(f"the data are no {datatype}") from None
    with np.errstate(over="ignore"):
        rows = values.astype("<f4").reshape(shape[0], -1)
    return [RecordBody(row.tobytes()) for row in rows]


def _flat(data: Any) -> list[Any]:
    """The elements of nested lists, row by row. Raises ProtocolFault where two lists of one depth differ in length."""
    if not isinstance(data, list):
        raise ProtocolFault("the input has no data")
    flat: list[Any] = data
    while flat and isinstance(flat[0], list):
        length = len(flat[0])
        if not all(isinstance(row, list) and len(row) == length for row in flat):
            raise ProtocolFault("the data are lists of unequal length")
        flat = [element for row in flat for element in row]
    return flat


def reply(
    asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer]
) -> tuple[dict[str, str], bytes]:
    """The answer's own headers, and its body."""
    known, outputs, binary = output_types(model), [], []
    for output, as_binary in asked.outputs.items():
        values = [_value(output, one) if one.good else ("" if known[output] == "BYTES" else 0.0) for one in answers]
        tensor: dict[str, Any] = {"name": output, "datatype": known[output], "shape": [len(answers)]}
        if as_binary:
            data = _packed(values, known[output])
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            tensor["data"] = values
        outputs.append(tensor)
    content: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": outputs}
    if asked.identity:
        content["id"] = asked.identity
    errors = {str(i): {"code": one.status, "message": one.message} for i, one in enumerate(answers) if not one.good}
    if errors:
        content["parameters"] = {"errors": json.dumps(errors)}
    head = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    if not binary:
        return {"content-type": JSON}, head
    return {"content-type": "application/octet-stream", LENGTH: str(len(head))}, b"".join([head, *binary])


def _value(output: str, one: RecordAnswer) -> Any:
    """One record's element of an output."""
    if output == "answer":
        return one.body.decode("utf-8", "replace")
    said = one.value if isinstance(one.value, dict) else {}
    probabilities = said.get("probabilities") if isinstance(said.get("probabilities"), dict) else {}
    if output == "probabilities":
        return json.dumps(probabilities)
    label = str(said.get("label", ""))
    return label if output == "label" else _probability((probabilities or {}).get(label))


def _probability(value: Any) -> float:
    """What the model says, where that is a number that JSON and FP32 can hold; else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0


def _packed(values: Sequence[Any], datatype: str) -> bytes:
    if datatype != "BYTES":
        return np.asarray(values, NUMBERS[datatype]).tobytes()
    elements = [value.encode("utf-8", "replace") for value in values]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)
