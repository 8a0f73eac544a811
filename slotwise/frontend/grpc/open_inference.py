"""The Open Inference Protocol (V2) over gRPC: its requests become what REST's become, its answers have the same tensors.

Contents are typed, or raw in the request's `raw_input_contents`; the answer's are as the request's were, and raw where one of
its types has no typed contents (FP16).
Source: the Open Inference Protocol's "inference_grpc".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.frontend.grpc.open_inference_messages import CLASSES
from slotwise.frontend.protocols import open_inference
from slotwise.frontend.protocols.open_inference import TEXT_COPIES
from slotwise.frontend.protocols.open_inference_columns import reading_columns
from slotwise.frontend.protocols.open_inference_named import NAMED, reading_named
from slotwise.frontend.protocols.open_inference_outputs import (
    InferRequest,
    errors,
    infer_request,
    tensors,
    with_scores,
    with_what_is_there,
)
from slotwise.frontend.protocols.open_inference_tensors import binary_copies, element_of, packed
from slotwise.frontend.protocols.records import ModelInput, ProtocolFault, RecordAnswer

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# Triton's enumerations, by their numbers.
DATA_TYPES = ("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8", "TYPE_INT16",
              "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING")  # fmt: skip
FINAL, WANTS_END = "triton_final_response", "triton_enable_empty_final_response"  # parameters of Triton's streams
GROUP_KINDS = ("KIND_AUTO", "KIND_GPU", "KIND_CPU")


def reading_bytes(message: Any, model: ModelInput = open_inference.ANY_MODEL) -> int:
    """The most memory that `request` takes, its result included."""
    tensors, raw = message.inputs, sum(map(len, message.raw_input_contents))
    datatype = tensors[0].datatype if tensors else ""
    numbers = sum(len(values) for tensor in tensors for _, values in tensor.contents.ListFields())
    of_raw = raw * (1 + binary_copies(datatype, model))
    rest: int = message.ByteSize() - raw
    of_rows = reading_columns(model, raw + rest) + reading_named(model, raw + rest)
    return of_raw + numbers * open_inference.NUMBER_BYTES + TEXT_COPIES * rest + of_rows


def request(message: Any, model: ModelInput) -> InferRequest:
    """Read a ModelInferRequest. Raises ProtocolFault."""
    raw = message.raw_input_contents
    if not message.inputs or (len(message.inputs) != 1 and model.takes not in ("table", NAMED)):
        raise ProtocolFault("the request must have one input")
    if raw and (len(raw) != len(message.inputs) or any(tensor.HasField("contents") for tensor in message.inputs)):
        raise ProtocolFault("raw_input_contents are one for each input, which then has no contents of its own")
    inputs: list[dict[str, Any]] = []
    for place, tensor in enumerate(message.inputs):
        about = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        parameters = {name: value for name, value in _parameters(tensor).items() if name != "binary_data_size"}
        if raw:
            parameters["binary_data_size"] = len(raw[place])
        else:
            about["data"] = _contents(tensor)
        inputs.append({**about, "parameters": parameters})
    binary = raw[0] if len(raw) == 1 else b"".join(raw)
    sent_records = open_inference.read_records(inputs, memoryview(binary), model)
    outputs = [{"name": output.name, "parameters": _parameters(output)} for output in message.outputs]
    content = {"outputs": outputs, "parameters": _parameters(message)}
    chosen = dict.fromkeys(open_inference.wanted(content, model), bool(raw))
    return infer_request(sent_records, message.id, chosen, model)


def _parameters(of: Any) -> dict[str, Any]:
    """The parameters of a message, or of a tensor, by name."""
    return {name: getattr(one, one.WhichOneof("choice") or "string_param") for name, one in of.parameters.items()}


def _contents(tensor: Any) -> list[Any]:
    """The values of a tensor whose contents are typed."""
    present = [field.name for field, _ in tensor.contents.ListFields()]
    expected = CONTENTS.get(tensor.datatype)
    if expected is None:
        raise ProtocolFault("the input's datatype is none that has typed contents: send raw_input_contents")
    if present not in ([], [expected]):
        raise ProtocolFault(f"{tensor.datatype} stand in {expected}, not in {', '.join(present)}")
    return list(getattr(tensor.contents, expected))


def reply(asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer]) -> bytes:
    """A ModelInferResponse. Raises ProtocolFault where no record has the scores that are wanted."""
    written: bytes = _response(asked, name, version, model, answers).SerializeToString()
    return written


def streamed(
    asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer], final: bool
) -> bytes:
    """A ModelStreamInferResponse: a piece of an answer, or all of it. Raises ProtocolFault as `reply` does."""
    return _in_stream(_response(asked, name, version, model, answers), final)


def stream_end(name: str, version: str, identity: str) -> bytes:
    """The ModelStreamInferResponse that says that all pieces of an answer were sent, and has none."""
    return _in_stream(CLASSES["ModelInferResponse"](model_name=name, model_version=version, id=identity), final=True)


def stream_error(status: int, message: str, identity: str) -> bytes:
    """The ModelStreamInferResponse with which a request ends that failed. status: HTTP's."""
    response = CLASSES["ModelInferResponse"](id=identity)
    response.parameters["errors"].string_param = json.dumps({"0": {"code": status, "message": message}})
    return _in_stream(response, final=True, error=message)


def _in_stream(response: Any, final: bool, error: str = "") -> bytes:
    response.parameters[FINAL].bool_param = final
    written: bytes = CLASSES["ModelStreamInferResponse"](error_message=error, infer_response=response).SerializeToString()
    return written


def _response(asked: InferRequest, name: str, version: str, model: ModelInput, answers: Sequence[RecordAnswer]) -> Any:
    asked = with_what_is_there(asked, model, answers)
    answers = with_scores(asked, model, answers)
    message = CLASSES["ModelInferResponse"](model_name=name, model_version=version, id=asked.identity)
    filled = list(tensors(asked, model, answers))
    raw = any(asked.outputs.values()) or any(datatype not in CONTENTS for _, datatype, _, _ in filled)  # all of them, or none
    for output, datatype, shape, values in filled:
        tensor = message.outputs.add(name=output, datatype=datatype, shape=shape)
        if raw:
            message.raw_output_contents.append(packed(values, datatype))
        elif datatype == "BYTES":
            tensor.contents.bytes_contents.extend(map(element_of, values))
        else:
            getattr(tensor.contents, CONTENTS[datatype]).extend(values)
    failed = errors(answers)
    if failed:
        message.parameters["errors"].string_param = failed
    return message


def plain(kind: str, content: Mapping[str, Any]) -> bytes:
    """A message whose fields are those of this JSON object."""
    written: bytes = CLASSES[kind](**content).SerializeToString()
    return written


def model_config(config: Mapping[str, Any]) -> bytes:
    """A ModelConfigResponse of Triton's. config: as its JSON has it, where enumerations are words."""
    tensors = {
        part: [{**tensor, "data_type": DATA_TYPES.index(tensor["data_type"])} for tensor in config[part]]
        for part in ("input", "output")
    }
    groups = [{**group, "kind": GROUP_KINDS.index(group["kind"])} for group in config["instance_group"]]
    return plain("ModelConfigResponse", {"config": {**config, **tensors, "instance_group": groups}})
