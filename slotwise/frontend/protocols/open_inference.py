"""The Open Inference Protocol (V2): tensors in, tensors out. REST's messages, with the binary tensor extension both ways.

BYTES of shape [n] or [n, 1] are n records. A model of tensors takes numbers of shape [n, ...], which are n records, too. The
answer has a row a record, in order: `answer` (what the model said, as JSON), and of a classifier `label`, `probability` and
`probabilities`. A record that fails has an empty row, and `parameters.errors` says which and why.
Source: the Open Inference Protocol's "inference_rest" and Triton's "extension_binary_data".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise import __version__
from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.open_inference_tensors import binary_copies, packed, parameters, records
from slotwise.frontend.protocols.records import JSON, ModelInput, ProtocolFault, RecordAnswer, RecordBody, parsed

EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")  # of "model_repository" there is only the index
LENGTH = "inference-header-content-length"
LARGEST = 3.4e38  # that FP32 can hold
NUMBER_BYTES = 88  # of one in JSON: parsed, in two lists, in two arrays, in its record
TEXT_COPIES = 3  # of a text in its record, escaped
_DATATYPE = re.compile(rb'"datatype"\s*:\s*"(\w+)"').findall
ANSWERS = {"answer": "BYTES"}
OF_CLASSES = {"label": "BYTES", "probability": "FP32", "probabilities": "BYTES"}


@dataclass(frozen=True)
class InferRequest:
    """One request, over REST or gRPC. identity: the client's id. outputs: those that are wanted, and whether as binary data."""

    records: Sequence[RecordBody]
    identity: str
    outputs: Mapping[str, bool]


def output_types(model: ModelInput) -> dict[str, str]:
    """The outputs that a model has, and their datatypes."""
    return ANSWERS | (OF_CLASSES if model.classes else {})


def server() -> dict[str, Any]:
    """What `GET /v2` says."""
    return {"name": "slotwise", "version": __version__, "extensions": list(EXTENSIONS)}


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
    records_read = records(inputs[0], memoryview(body)[length:], model)
    return InferRequest(records_read, identity, wanted(content, model))


def reading_bytes(body: bytes, header_length: str | None) -> int:
    """The most memory that `request` takes, its result included."""
    json_end = len(body) if header_length is None else _length(header_length, len(body))
    head = body[:json_end]
    of_json = json_pieces.reading_bytes(head, NUMBER_BYTES) + TEXT_COPIES * json_end
    types = _DATATYPE(head) if b"\\" not in head else []
    return of_json + binary_copies(types[0].decode() if len(types) == 1 else "") * (len(body) - json_end)


def _length(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 12 or int(text) > most:
        raise ProtocolFault("the header Inference-Header-Content-Length does not fit the body")
    return int(text)


def wanted(content: Mapping[str, Any], model: ModelInput) -> dict[str, bool]:
    """The outputs that a request wants, and which of them as binary data. Raises ProtocolFault."""
    known = output_types(model)
    binary = parameters(content).get("binary_data_output") is True
    outputs = content.get("outputs") or [{"name": name} for name in known]
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise ProtocolFault("outputs is no list of objects")
    by_name = {}
    for output in outputs:
        name = output.get("name")
        if not isinstance(name, str) or name not in known:
            raise ProtocolFault(f"there is no such output; the model has {', '.join(known)}")
        by_name[name] = parameters(output).get("binary_data", binary) is True
    return by_name


def tensors(asked: InferRequest, model: ModelInput, answers: Sequence[RecordAnswer]) -> Iterator[tuple[str, str, list[Any]]]:
    """Name, datatype and values of each output that is wanted; what failed has an empty value."""
    known = output_types(model)
    columns: dict[str, list[Any]] = {output: [] for output in asked.outputs}
    for one in answers:  # each is taken apart once, and nothing of it is kept
        value = one.value if one.good and columns.keys() != {"answer"} else None
        for output, column in columns.items():
            empty = "" if known[output] == "BYTES" else 0.0
            column.append(_value(output, one, value) if one.good else empty)
    for output, column in columns.items():
        yield output, known[output], column


def errors(answers: Sequence[RecordAnswer]) -> str:
    """What failed, and why, as JSON by the record's place; "" where nothing did."""
    by_place = {str(i): {"code": one.status, "message": one.message} for i, one in enumerate(answers) if not one.good}
    return json.dumps(by_place) if by_place else ""


def reply(
    asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer]
) -> tuple[dict[str, str], bytes]:
    """The answer's own headers, and its body."""
    outputs, binary = [], []
    for output, datatype, values in tensors(asked, model, answers):
        tensor: dict[str, Any] = {"name": output, "datatype": datatype, "shape": [len(answers)]}
        if asked.outputs[output]:
            data = packed(values, datatype)
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
            outputs.append(json_pieces.dumped(tensor))
        else:
            outputs.append(f'{json_pieces.dumped(tensor)[:-1]}, "data": {json_pieces.dumped_list(values)}}}')
    about = json_pieces.dumped({"model_name": name, "model_version": version})[:-1]
    more: dict[str, Any] = {"id": asked.identity} if asked.identity else {}
    failed = errors(answers)
    if failed:
        more["parameters"] = {"errors": failed}
    rest = f", {json_pieces.dumped(more)[1:]}" if more else "}"
    head = f'{about}, "outputs": [{", ".join(outputs)}]{rest}'.encode("utf-8", "backslashreplace")
    if not binary:
        return {"content-type": JSON}, head
    return {"content-type": "application/octet-stream", LENGTH: str(len(head))}, b"".join([head, *binary])


def _value(output: str, one: RecordAnswer, value: Any) -> Any:
    """One record's element of an output. value: the answer as JSON has it."""
    if output == "answer":
        return one.body.decode("utf-8", "replace")
    fields = value if isinstance(value, dict) else {}
    probabilities = fields.get("probabilities") if isinstance(fields.get("probabilities"), dict) else {}
    if output == "probabilities":
        return json.dumps(probabilities)
    label = str(fields.get("label", ""))
    return label if output == "label" else _probability((probabilities or {}).get(label))


def _probability(value: Any) -> float:
    """What the model says, where that is a number that JSON and FP32 can hold; else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else 0.0
