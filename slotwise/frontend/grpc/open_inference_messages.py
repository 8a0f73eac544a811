"""The messages of the Open Inference Protocol's gRPC service, `inference.GRPCInferenceService`.

They are built here from the table below, not generated: generated code is bound to one release of protobuf, and goes into the
process's one pool of messages, where it clashes with the copy that Triton's or KServe's client brings along.
Source: the Open Inference Protocol's "inference_grpc"; tests/frontend/test_grpc.py compares with Triton's own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from slotwise.frontend.protocols.records import MOST_PIECES, MOST_RECORDS, ProtocolFault

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# A message a line, its fields numbered from 1 in this order, or from where one says its number. "*": any number of them.
# "|": one of them. From ModelConfigRequest on: Triton's, with the fields that are known here; enumerations are numbers.
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
InferInputTensor string name, string datatype, int64* shape, ParametersEntry* parameters, InferTensorContents contents
InferRequestedOutputTensor string name, ParametersEntry* parameters
ModelInferRequest string model_name, string model_version, string id, ParametersEntry* parameters, \
InferInputTensor* inputs, InferRequestedOutputTensor* outputs, bytes* raw_input_contents
InferOutputTensor string name, string datatype, int64* shape, ParametersEntry* parameters, InferTensorContents contents
ModelInferResponse string model_name, string model_version, string id, ParametersEntry* parameters, \
InferOutputTensor* outputs, bytes* raw_output_contents
ModelConfigRequest string name, string version
ModelInput string name, int32 data_type, int64* dims=4
ModelOutput string name, int32 data_type, int64* dims
ModelDynamicBatching int32* preferred_batch_size, uint64 max_queue_delay_microseconds
ModelInstanceGroup string name, int32 count, int32 kind=4
ModelConfig string name, string platform, int32 max_batch_size=4, ModelInput* input, ModelOutput* output, \
ModelInstanceGroup* instance_group, ModelDynamicBatching dynamic_batching=11, string backend=17
ModelConfigResponse ModelConfig config
ModelStatisticsRequest string name, string version
StatisticDuration uint64 count, uint64 ns
InferStatistics StatisticDuration success, StatisticDuration fail, StatisticDuration queue, StatisticDuration compute_input, \
StatisticDuration compute_infer, StatisticDuration compute_output, StatisticDuration cache_hit, StatisticDuration cache_miss
InferBatchStatistics uint64 batch_size
ModelStatistics string name, string version, uint64 last_inference, uint64 inference_count, uint64 execution_count, \
InferStatistics inference_stats, InferBatchStatistics* batch_stats
ModelStatisticsResponse ModelStatistics* model_stats
RepositoryIndexRequest string repository_name, bool ready
ModelIndex string name, string version, string state, string reason
RepositoryIndexResponse ModelIndex* models
"""
FIELD = re.compile(r"(\w+)([*|]?) (\w+)(?:=(\d+))?")
MOST_FIELDS = 4 * MOST_RECORDS  # of one message: each is an object in memory, which may be two bytes on the way
FIXED = {1: 8, 5: 4}  # the bytes of a number by its wire type
NUMBER = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}  # the bytes of one by its type; of others, from 1 on
FIELD_BYTES, NUMBER_BYTES = 160, 16  # what each becomes, while its list grows
CUT_OFF = "the message is cut off"


def _message(line: str) -> DescriptorProto:
    """A line of the table, as protobuf describes a message."""
    name, _, fields = line.partition(" ")
    message = DescriptorProto(name=name)
    number = 0
    for kind, mark, field_name, own_number in FIELD.findall(fields):
        number = int(own_number or number + 1)
        label = FieldDescriptorProto.LABEL_REPEATED if mark == "*" else FieldDescriptorProto.LABEL_OPTIONAL
        field = message.field.add(name=field_name, number=number, label=label, oneof_index=0 if mark == "|" else None)
        if kind.islower():
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        else:
            field.type_name = kind
    if "|" in fields:
        message.oneof_decl.add(name="parameter_choice")
    if "ParametersEntry" in fields:  # what a map is on the wire
        entry = _message("ParametersEntry string key, InferParameter value")
        entry.options.map_entry = True
        message.nested_type.append(entry)
    return message


def _classes() -> dict[str, Any]:
    pool, messages = DescriptorPool(), map(_message, TABLE.strip().splitlines())
    pool.Add(FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3", message_type=messages))
    described = pool.FindFileByName("open_inference.proto").message_types_by_name
    return {name: GetMessageClass(message) for name, message in described.items()}


CLASSES = _classes()


def parsed_message(kind: str, data: bytes) -> Any:
    """The message of that kind. Raises ProtocolFault: 400 where it is none, 413 where it is of too many parts."""
    _Parts().count(memoryview(data), CLASSES[kind].DESCRIPTOR)
    try:
        return CLASSES[kind].FromString(data)
    except DecodeError:
        raise ProtocolFault(f"the message is no {kind}") from None


def message_bytes(kind: str, data: bytes) -> int:
    """The most memory that the message takes once it is parsed. Raises ProtocolFault where it has too many parts."""
    parts = _Parts()
    parts.count(memoryview(data), CLASSES[kind].DESCRIPTOR)
    return 2 * len(data) + parts.fields * FIELD_BYTES + parts.numbers * NUMBER_BYTES


class _Parts:
    """Counts the parts of a message before it is parsed: two bytes of it can become a hundred in memory."""

    def __init__(self) -> None:
        self.fields = self.numbers = 0

    def count(self, data: memoryview, message: Descriptor) -> None:
        """Count the fields of one message, and of those within it. Raises ProtocolFault."""
        fields, at = message.fields_by_number, 0
        while at < len(data):
            self.fields += 1
            if self.fields > MOST_FIELDS:
                raise ProtocolFault(f"the message has more than {MOST_FIELDS} parts, and at most {MOST_RECORDS} records", 413)
            tag, at = _varint(data, at)
            wire_type, field = tag & 7, fields.get(tag >> 3)
            if wire_type == 0:
                _, at = _varint(data, at)
            elif wire_type in FIXED:
                at += FIXED[wire_type]
            elif wire_type == 2:
                length, at = _varint(data, at)
                if length > len(data) - at:
                    raise ProtocolFault(CUT_OFF)
                if field and field.message_type:
                    self.count(data[at : at + length], field.message_type)
                elif field and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                    self._count_numbers(data[at : at + length], NUMBER.get(field.type, 1))
                at += length
            else:
                raise ProtocolFault("the message has a group, which this protocol has not")
        if at > len(data):
            raise ProtocolFault(CUT_OFF)

    def _count_numbers(self, packed: memoryview, width: int) -> None:
        last_bytes = np.frombuffer(packed, np.uint8) < 0x80  # of numbers of variable length
        self.numbers += len(packed) // width if width > 1 else int(np.count_nonzero(last_bytes))
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
