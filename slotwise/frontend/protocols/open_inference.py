"""The Open Inference Protocol (V2): tensors in, tensors out. REST's messages, with the binary tensor extension both ways.

BYTES of shape [n] or [n, 1] are n records. A model of tensors takes numbers of shape [n, ...], which are n records, too; of a
table each input may be a column. The answer has a row a record, in order: `answer` (what the model said, as JSON), and of a
classifier `label`, `probability` and `probabilities`, `scores` (every class's) and what its graph calls its own output. A
record that fails has an empty row, and `parameters.errors` says which and why.
Source: the Open Inference Protocol's "inference_rest" and Triton's "extension_binary_data".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise import __version__
from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.open_inference_columns import column_records, described_columns, of_columns, reading_columns
from slotwise.frontend.protocols.open_inference_named import NAMED, described_tensors, named_records, reading_named
from slotwise.frontend.protocols.open_inference_outputs import (
    InferRequest,
    described,
    errors,
    infer_request,
    output_types,
    tensors,
    with_scores,
    with_texts,
    with_what_is_there,
)
from slotwise.frontend.protocols.open_inference_tensors import V2_TYPES, are_base64, binary_copies, packed, parameters, records
from slotwise.frontend.protocols.records import JSON, Found, ModelInput, ProtocolFault, RecordAnswer, parsed

EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")  # of "model_repository" there is only the index
LENGTH = "inference-header-content-length"
NUMBER_BYTES = 88  # of one in JSON: parsed, in two lists, in two arrays, in its record
ANY_MODEL = ModelInput()
TEXT_COPIES = 3  # of a text in its record, escaped
_DATATYPE = re.compile(rb'"datatype"\s*:\s*"(\w+)"').findall


def server() -> dict[str, Any]:
    """What `GET /v2` says."""
    return {"name": "slotwise", "version": __version__, "extensions": list(EXTENSIONS)}


def metadata(name: str, versions: Sequence[str], model: ModelInput) -> dict[str, Any]:
    """What `GET /v2/models/NAME` says."""
    inputs: list[dict[str, Any]] = [{"name": "input", "datatype": "BYTES", "shape": [-1, 1]}]
    if model.takes == "tensor" and model.shape:
        inputs = [{"name": "input", "datatype": V2_TYPES[model.dtype], "shape": [-1, *model.shape]}]
    inputs = described_tensors(model.inputs) or described_columns(model) or inputs
    outputs = described(model)
    return {"name": name, "versions": list(versions), "platform": "slotwise", "inputs": inputs, "outputs": outputs}


def request(body: bytes, header_length: str | None, model: ModelInput) -> InferRequest:
    """Read a request. header_length: the header LENGTH, None where there is no binary data. Raises ProtocolFault."""
    length = len(body) if header_length is None else _length(header_length, len(body))
    content = parsed(body[:length])
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise ProtocolFault("the request must have one input")
    identity = content.get("id", "")
    if not isinstance(identity, str):
        raise ProtocolFault("the id is no text")
    records_read = read_records(inputs, memoryview(body)[length:], model)
    return infer_request(records_read, identity, wanted(content, model), model)


def read_records(inputs: Sequence[Mapping[str, Any]], binary: memoryview, model: ModelInput) -> Found:
    """The records of these inputs: one, unless they are the columns of a table. Raises ProtocolFault."""
    if model.takes == NAMED and not (len(inputs) == 1 and inputs[0].get("datatype") == "BYTES"):
        return named_records(inputs, binary, model)
    if of_columns(inputs, model):
        return column_records(inputs, binary, model)
    if len(inputs) != 1:
        raise ProtocolFault("the request must have one input")
    return records(inputs[0], binary, model)


def reading_bytes(body: bytes, header_length: str | None, model: ModelInput = ANY_MODEL) -> int:
    """The most memory that `request` takes, its result included."""
    json_end = len(body) if header_length is None else _length(header_length, len(body))
    head = body[:json_end]
    of_json = json_pieces.reading_bytes(head, NUMBER_BYTES) + TEXT_COPIES * json_end
    types = _DATATYPE(head) if b"\\" not in head else []
    copies = binary_copies(types[0].decode() if len(types) == 1 else "", model)
    return of_json + copies * (len(body) - json_end) + reading_columns(model, len(body)) + reading_named(model, len(body))


def _length(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 12 or int(text) > most:
        raise ProtocolFault("the header Inference-Header-Content-Length does not fit the body")
    return int(text)


def wanted(content: Mapping[str, Any], model: ModelInput) -> dict[str, bool]:
    """The outputs that a request wants, and which of them as binary data.

    Raises ProtocolFault, also for a parameter that would change the answer and is not read.
    """
    known, given = output_types(model), parameters(content)
    if are_base64(content):  # each would be read as the text that it is
        raise ProtocolFault("the parameter content_type base64 is an input's own, and not the request's")
    binary = given.get("binary_data_output") is True
    outputs = content.get("outputs") or [{"name": name} for name in known]
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise ProtocolFault("outputs is no list of objects")
    by_name = {}
    for output in outputs:
        name = output.get("name")
        if not isinstance(name, str) or name not in known:
            raise ProtocolFault(f"there is no such output; the model has {', '.join(known)}")
        given = parameters(output)
        if "content_type" in given:
            raise ProtocolFault("an output has no content_type here: BYTES are as the model gave them")
        by_name[name] = given.get("binary_data", binary) is True
    return by_name


def reply(
    asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer]
) -> tuple[dict[str, str], bytes]:
    """The answer's own headers, and its body. Raises ProtocolFault where no record has the scores that are wanted."""
    outputs, binary = [], []
    asked = with_what_is_there(asked, model, answers)
    answers = with_texts(asked, with_scores(asked, model, answers))
    for output, datatype, shape, values in tensors(asked, model, answers):
        tensor: dict[str, Any] = {"name": output, "datatype": datatype, "shape": shape}
        if asked.outputs[output]:
            data = packed(values, datatype)
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
            outputs.append(json_pieces.dumped(tensor))
        else:
            values = [value.decode() if isinstance(value, bytes) else value for value in values]
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
