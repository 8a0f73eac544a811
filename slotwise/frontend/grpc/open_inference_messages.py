"""The messages of the Open Inference Protocol's gRPC service, `inference.GRPCInferenceService`.

They are built here from the table below, not generated: generated code is bound to one release of protobuf, and goes into the
process's one pool of messages, where it clashes with the copy that Triton's or KServe's client brings along.
Source: the Open Inference Protocol's "inference_grpc"; tests/frontend/test_grpc.py compares with Triton's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from slotwise.frontend.protocols.records import MOST_PIECES, MOST_RECORDS, ProtocolFault

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# A message a line, its fields numbered from 1 in this order. "*": any number of them. "|": one of them. "map": by a text.
TABLE = """
ServerLiveRequest
ServerLiveResponse bool live
ServerReadyRequest
ServerReadyResponse bool ready
ModelReadyRequest string name, string version
ModelReadyResponse bool ready
ServerMetadataRequest
ServerMetadataResponse string name, string version, string* extensions
ModelMetadataRequest string name, string version
TensorMetadata string name, string datatype, int64* shape
ModelMetadataResponse string name, string* versions, string platform, TensorMetadata* inputs, TensorMetadata* outputs
InferParameter bool| bool_param, int64| int64_param, string| string_param, double| double_param, uint64| uint64_param
InferTensorContents bool* bool_contents, int32* int_contents, int64* int64_contents, uint32* uint_contents, \
uint64* uint64_contents, float* fp32_contents, double* fp64_contents, bytes* bytes_contents
InferInputTensor string name, string datatype, int64* shape, map parameters, InferTensorContents contents
InferRequestedOutputTensor string name, map parameters
ModelInferRequest string model_name, string model_version, string id, map parameters, InferInputTensor* inputs, \
InferRequestedOutputTensor* outputs, bytes* raw_input_contents
InferOutputTensor string name, string datatype, int64* shape, map parameters, InferTensorContents contents
ModelInferResponse string model_name, string model_version, string id, map parameters, InferOutputTensor* outputs, \
bytes* raw_output_contents
"""
MOST_FIELDS = 4 * MOST_RECORDS  # of one message: each is an object in memory, which may be two bytes on the way
FIXED = {1: 8, 5: 4}  # the bytes of a number by its wire type
PACKED = {"bool": 1, "int32": 1, "int64": 1, "uint32": 1, "uint64": 1, "float": 4, "double": 8}  # the fewest bytes of a number
FIELD_BYTES, NUMBER_BYTES = 160, 16  # what each becomes, while its list grows
CUT_OFF = "the message is cut off"


def _fields(line: str) -> Iterator[tuple[int, str, str, str]]:
    """Number, type, mark ("*", "|" or "") and name of each field in a line of the table."""
    _, _, listed = line.partition(" ")
    for number, field in enumerate(listed.split(",") if listed else [], 1):
        kind, name = field.split()
        yield number, kind.rstrip("*|"), kind[-1] if kind[-1] in "*|" else "", name


LINES = {line.split(" ")[0]: line for line in TABLE.strip().splitlines()}
KINDS = {message: {number: kind for number, kind, _, _ in _fields(line)} for message, line in LINES.items()}
KINDS["map"] = {1: "string", 2: "InferParameter"}


def _described(message: str, line: str) -> DescriptorProto:
    found = DescriptorProto(name=message)
    for number, kind, mark, name in _fields(line):
        field = found.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if mark == "*" or kind == "map":
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if mark == "|":
            field.oneof_index = 0
            if not found.oneof_decl:
                found.oneof_decl.add(name="parameter_choice")
        if kind == "map":
            entry = found.nested_type.add(name=f"{name.capitalize()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=FieldDescriptorProto.TYPE_STRING)
            entry.field.add(name="value", number=2, label=1, type_name=f".{PACKAGE}.InferParameter")
            field.type_name = f".{PACKAGE}.{message}.{entry.name}"
        elif kind in LINES:
            field.type_name = f".{PACKAGE}.{kind}"
        else:
            field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    return found


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3")
    file.message_type.extend(_described(message, line) for message, line in LINES.items())
    pool = DescriptorPool()
    pool.Add(file)
    return {message: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message}")) for message in LINES}


CLASSES = _classes()


def parsed_message(kind: str, data: bytes) -> Any:
    """The message of that kind. Raises ProtocolFault: 400 where it is none, 413 where it is of too many parts."""
    _Parts().count(memoryview(data), kind)
    try:
        return CLASSES[kind].FromString(data)
    except DecodeError:
        raise ProtocolFault(f"the message is no {kind}") from None


def message_bytes(kind: str, data: bytes) -> int:
    """The most memory that the message takes once it is parsed. Raises ProtocolFault where it has too many parts."""
    parts = _Parts()
    parts.count(memoryview(data), kind)
    return 2 * len(data) + parts.fields * FIELD_BYTES + parts.numbers * NUMBER_BYTES


class _Parts:
    """Counts the parts of a message before it is parsed: two bytes of it can become a hundred in memory."""

    def __init__(self) -> None:
        self.fields = self.numbers = 0

    def count(self, data: memoryview, kind: str) -> None:
        """Count the fields of one message, and of those within it. Raises ProtocolFault."""
        kinds, at = KINDS.get(kind, {}), 0
        while at < len(data):
            self.fields += 1
            if self.fields > MOST_FIELDS:
                raise ProtocolFault(f"the message has more than {MOST_FIELDS} parts, and at most {MOST_RECORDS} records", 413)
            tag, at = _varint(data, at)
            wire_type, inner = tag & 7, kinds.get(tag >> 3, "")
            if wire_type == 0:
                _, at = _varint(data, at)
            elif wire_type in FIXED:
                at += FIXED[wire_type]
            elif wire_type == 2:
                length, at = _varint(data, at)
                if length > len(data) - at:
                    raise ProtocolFault(CUT_OFF)
                if inner in KINDS:
                    self.count(data[at : at + length], inner)
                elif inner in PACKED:
                    self._count_numbers(data[at : at + length], inner)
                at += length
            else:
                raise ProtocolFault("the message has a group, which this protocol has not")
        if at > len(data):
            raise ProtocolFault(CUT_OFF)

    def _count_numbers(self, packed: memoryview, kind: str) -> None:
        width = PACKED[kind]
        found = np.frombuffer(packed, np.uint8)
        self.numbers += len(packed) // width if width > 1 else int(np.count_nonzero(found < 0x80))  # a number's last byte
        if self.numbers > MOST_PIECES:
            raise ProtocolFault(f"the contents are more than {MOST_PIECES} numbers: send tensors as raw contents", 413)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ProtocolFault(CUT_OFF)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ProtocolFault("the message has a number of more than ten bytes")
