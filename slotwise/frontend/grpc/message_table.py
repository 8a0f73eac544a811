"""Messages of protobuf from a table, where others generate code from a .proto file.

Generated code is bound to one release of protobuf, and goes into the process's one pool of messages, where it clashes with the
copy that another package brings along. Here every table has a pool of its own.
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

FIELD = re.compile(r"(\w+)([*|]?) (\w+)(?:=(\d+))?")
ENTRY = "Entry"  # how the names of messages end that a map is made of
MOST_FIELDS = 4 * MOST_RECORDS  # of one message: each is an object in memory, which may be two bytes on the way
LONGEST_TEXT = 4096  # bytes, of one that is looked for in a message which is not read yet
FIXED = {1: 8, 5: 4}  # the bytes of a number by its wire type
NUMBER = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}  # the bytes of one by its type; of others, from 1 on
FIELD_BYTES, NUMBER_BYTES = 160, 16  # what each becomes, while its list grows
CUT_OFF = "the message is cut off"


class MessageTable:
    """The messages of a package. lines: a message a line, its fields numbered from 1 in their order, or as `=NUMBER` says.

    `*` after a type: any number of them; `|`: one of them. A message whose name ends in Entry is what the map of that type is
    made of.
    """

    def __init__(self, package: str, lines: str) -> None:
        self._lines = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines.strip().splitlines()}
        pool, messages = DescriptorPool(), [self._message(name) for name in self._lines if not name.endswith(ENTRY)]
        pool.Add(FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3", message_type=messages))
        described = pool.FindFileByName(f"{package}.proto").message_types_by_name
        self.classes: dict[str, Any] = {name: GetMessageClass(message) for name, message in described.items()}

    def parsed(self, kind: str, data: bytes) -> Any:
        """The message of that kind. Raises ProtocolFault: 400 where it is none, 413 where it is of too many parts."""
        _Parts().count(memoryview(data), self.classes[kind].DESCRIPTOR)
        try:
            return self.classes[kind].FromString(data)
        except DecodeError:
            raise ProtocolFault(f"the message is no {kind}") from None

    def memory_bytes(self, kind: str, data: bytes) -> int:
        """The most memory that the message takes once it is parsed. Raises ProtocolFault where it has too many parts."""
        parts = _Parts()
        parts.count(memoryview(data), self.classes[kind].DESCRIPTOR)
        return 2 * len(data) + parts.fields * FIELD_BYTES + parts.numbers * NUMBER_BYTES

    def _message(self, name: str) -> DescriptorProto:
        """A line of the table, as protobuf describes a message."""
        message, number, fields = DescriptorProto(name=name), 0, self._lines[name]
        for kind, mark, field_name, own_number in FIELD.findall(fields):
            number = int(own_number or number + 1)
            label = FieldDescriptorProto.LABEL_REPEATED if mark == "*" else FieldDescriptorProto.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label, oneof_index=0 if mark == "|" else None)
            if kind.islower():
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
                continue
            field.type_name = kind
            if kind.endswith(ENTRY):
                entry = self._message(kind)
                entry.options.map_entry = True
                message.nested_type.append(entry)
        if "|" in fields:
            message.oneof_decl.add(name="choice")
        return message


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


def text_field(data: bytes, number: int) -> str:
    """The text in this field of a message, or its beginning, without a copy of the rest; "" where there is none."""
    at, text, view = 0, b"", memoryview(data)
    try:
        for _ in range(MOST_FIELDS):
            if at >= len(data):
                break
            tag, at = _varint(view, at)
            if tag & 7 == 2:
                length, at = _varint(view, at)
                if tag >> 3 == number:
                    text = data[at : at + min(length, LONGEST_TEXT)]
                at += length
            elif tag & 7 == 0:
                _, at = _varint(view, at)
            else:
                at += FIXED.get(tag & 7, len(data))
    except ProtocolFault:
        return ""
    return text.decode("utf-8", "replace")


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
