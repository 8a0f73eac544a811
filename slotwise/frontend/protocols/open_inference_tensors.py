"""The Open Inference Protocol's tensors: one becomes a record a row, values become binary data."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slotwise.frontend.protocols.records import JSON, Found, ModelInput, ProtocolFault, RecordBody, limited, of_base64
from slotwise.worker.labels import RAW_NUMBERS

NUMBERS = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
MOST_SIDES = 16  # of a tensor's shape
V2_TYPES = {np.dtype(kind).name: name for name, kind in NUMBERS.items()}
FP32_WHOLE, FP64_WHOLE = 2**24, 2**53 - 1  # FP32 and FP64 hold every whole number until there, and no other is read as one
HARMLESS = frozenset({
    "binary_data", "binary_data_output", "binary_data_size", "content_type", "headers", "priority", "timeout",
    "triton_enable_empty_final_response",
})  # parameters that are read, or change no answer  # fmt: skip
NO_SEQUENCE = "sequence_id is not read here: name the sequence by the header that HTTP has, over gRPC in the call's metadata"


def parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands under `parameters`. Raises ProtocolFault, also for one that is not read and would change the answer."""
    given = of.get("parameters", {})
    if not isinstance(given, dict):
        raise ProtocolFault("parameters is no object")
    unread = min(given.keys() - HARMLESS, default=None)
    if unread is not None:
        named = f"the parameter {unread[:40]!r} is not read here"
        raise ProtocolFault(NO_SEQUENCE if unread.startswith("sequence_") else named)
    return given


def binary_copies(datatype: str, model: ModelInput) -> int:
    """How often binary data of this type is in memory while `records` makes records of it: as an array, and as the model's."""
    width = np.dtype(NUMBERS[datatype]).itemsize if datatype in NUMBERS else 1
    return 2 if datatype == "BYTES" else 1 + 2 * max(np.dtype(model.dtype).itemsize, 4) // width


def records(tensor: Mapping[str, Any], binary: memoryview, model: ModelInput) -> Found:
    """The records of the one input. Its data are a list, or all of `binary`. Raises ProtocolFault."""
    datatype, shape = tensor.get("datatype"), shape_of(tensor)
    limited(shape[0])
    size = binary_size(tensor)
    if size is not None and size != len(binary):
        raise ProtocolFault(f"binary_data_size is not the {len(binary)} bytes that follow the JSON")
    if size is None and len(binary):
        raise ProtocolFault("bytes follow the JSON, and no input says that they are its own")
    if datatype == "BYTES":
        if math.prod(shape[1:]) != 1:
            raise ProtocolFault("BYTES have the shape [n] or [n, 1]: each element is a record")
        texts = list(texts_of(binary, shape[0])) if size is not None else listed_texts(tensor)
        if len(texts) != shape[0]:
            raise ProtocolFault(f"the shape says {shape[0]} elements, {len(texts)} are there")
        return [of_base64(text, "an element") for text in texts] if are_base64(tensor) else _elements(texts, model)
    if _type_of(tensor) and model.takes != "tensor":
        raise ProtocolFault(f"this model takes a {model.takes} a record, as BYTES", 415)
    return _rows(tensor, shape, binary if size is not None else None, model)


def binary_size(tensor: Mapping[str, Any]) -> Any:
    """What a tensor says of its binary data; None: its data are a list. Raises ProtocolFault where it has both."""
    size = parameters(tensor).get("binary_data_size")
    if size is not None and tensor.get("data"):
        raise ProtocolFault("an input has data and binary_data_size: one of them")
    return size


def parts_of(tensors: Sequence[Mapping[str, Any]], binary: memoryview) -> list[memoryview | None]:
    """What of the binary data is each tensor's, None where its data are a list. Raises ProtocolFault."""
    parts: list[memoryview | None] = []
    at = 0
    for tensor in tensors:
        size = binary_size(tensor)
        if size is None:
            parts.append(None)
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - at:
            raise ProtocolFault("binary_data_size does not fit the bytes that follow the JSON")
        parts.append(binary[at : at + size])
        at += size
    if at != len(binary):
        raise ProtocolFault("bytes follow the JSON, and no input says that they are its own")
    return parts


def shape_of(tensor: Mapping[str, Any]) -> list[int]:
    """A tensor's shape. Raises ProtocolFault."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(side) is int and 0 <= side < 2**40 for side in shape):
        raise ProtocolFault("the input's shape is no list of whole numbers")
    if len(shape) > MOST_SIDES:
        raise ProtocolFault(f"the input's shape has {len(shape)} sides, at most {MOST_SIDES} are taken")
    return shape


def _type_of(tensor: Mapping[str, Any]) -> str:
    """The type of a tensor of numbers. Raises ProtocolFault."""
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in NUMBERS:
        raise ProtocolFault("the input's datatype is none of this protocol")
    return datatype


def texts_of(binary: memoryview, count: int) -> Iterator[bytes]:
    """So many BYTES as binary data: each with its length before it. Raises ProtocolFault, before one more is made."""
    at = found = 0
    while at < len(binary):
        found += 1
        if found > count:
            raise ProtocolFault(f"the shape says {count} elements, more are there")
        if len(binary) - at < 4:
            raise ProtocolFault("the binary data is cut off")
        (length,) = struct.unpack_from("<I", binary, at)
        at += 4
        if len(binary) - at < length:
            raise ProtocolFault("the binary data is cut off")
        yield bytes(binary[at : at + length])
        at += length


def are_base64(tensor: Mapping[str, Any]) -> bool:
    """Whether a tensor, or a request, says that its elements are base64."""
    return parameters(tensor).get("content_type") == "base64"


def _elements(texts: Sequence[Any], model: ModelInput) -> list[RecordBody]:
    """BYTES: bytes as binary data and over gRPC, and texts as JSON. A picture can only stand there as base64."""
    if all(isinstance(element, bytes) for element in texts):
        return [RecordBody(element) for element in texts]
    if model.takes == "picture":
        return [RecordBody(json.dumps({"b64": text}).encode(), JSON) for text in texts]
    try:
        return [RecordBody(text.encode()) for text in texts]
    except UnicodeEncodeError:
        raise ProtocolFault("a text has half of a surrogate pair, which is no character") from None


def listed_texts(tensor: Mapping[str, Any]) -> list[Any]:
    """BYTES as a list: all bytes, or all texts. Raises ProtocolFault."""
    texts = flat(tensor.get("data"), shape_of(tensor))
    if not all(isinstance(text, str) for text in texts) and not all(isinstance(element, bytes) for element in texts):
        raise ProtocolFault("BYTES as JSON are texts")
    return texts


def _rows(tensor: Mapping[str, Any], shape: Sequence[int], binary: memoryview | None, model: ModelInput) -> list[RecordBody]:
    """Numbers: a row a record, in the model's own type. Raises ProtocolFault."""
    if model.shape and list(shape[1:]) != list(model.shape):
        raise ProtocolFault(f"the input's shape must be [n, {', '.join(map(str, model.shape))}]")
    kind = V2_TYPES[model.dtype]
    values = numbers_of(tensor, shape, binary, whole=kind != "FP32")
    if not (_in_fp32(values) if kind == "FP32" else _in_whole(values, np.iinfo(NUMBERS[kind]))):
        raise ProtocolFault(f"{kind}, which this model takes, does not hold every number of the input", 415)
    with np.errstate(over="ignore"):
        rows = values.astype(NUMBERS[kind], copy=False).reshape(shape[0], -1)
    return [RecordBody(row.tobytes(), RAW_NUMBERS) for row in rows]


def _in_whole(values: Any, limits: Any) -> bool:
    """Whether a type of whole numbers holds each of these."""
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        return False
    return not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)


def _in_fp32(values: Any) -> bool:
    """Whether FP32 holds each of them where they are whole numbers: without the zeros at its end such a one has 24 bits."""
    if values.dtype.kind not in "iu" or not values.size:
        return True
    if values.max() <= FP32_WHOLE and values.min() >= -FP32_WHOLE:
        return True
    lowest = values & -values
    return bool((np.abs(values // np.where(lowest == 0, 1, lowest)) <= FP32_WHOLE).all())


def numbers_of(tensor: Mapping[str, Any], shape: Sequence[int], binary: memoryview | None, whole: bool = False) -> Any:
    """A tensor's numbers, flat, in its own type. binary: its data, None where they are a list. Raises ProtocolFault.

    whole: the model takes whole numbers, so that none in a list may become the nearest one that the type holds.
    """
    datatype = _type_of(tensor)
    kind, count = np.dtype(NUMBERS[datatype]), math.prod(shape)
    if binary is not None:
        if len(binary) != count * kind.itemsize:
            raise ProtocolFault(f"the shape says {count * kind.itemsize} bytes, {len(binary)} are there")
        values = np.frombuffer(binary, kind)
    else:
        numbers = flat(tensor.get("data"), shape)
        if len(numbers) != count:
            raise ProtocolFault(f"the shape says {count} numbers, {len(numbers)} are there")
        if not all(type(number) in (int, float) or (datatype == "BOOL" and type(number) is bool) for number in numbers):
            raise ProtocolFault(f"the data are no {datatype}")
        try:
            with np.errstate(all="ignore"):  # 1e300 becomes infinity, which the model refuses
                values = (
                    np.asarray(numbers).astype(kind) if datatype[:2] == "FP" else np.asarray(_whole(numbers, datatype), kind)
                )
        except (ValueError, OverflowError, TypeError):
            raise ProtocolFault(f"the data are no {datatype}") from None
        if whole and datatype[:2] == "FP" and any(map(is_another, numbers, values)):
            raise ProtocolFault(f"{datatype} does not hold every number of the data, and the model takes whole ones", 415)
    return values


def is_another(number: float, value: Any) -> bool:
    """Whether a whole number has become another one."""
    return (type(number) is int or number.is_integer()) and float(value) != number


def _whole(numbers: list[Any], datatype: str) -> list[Any]:
    """The numbers as whole ones; numpy would cut their fractions off. Raises ProtocolFault where one is not whole."""
    if datatype == "BOOL":
        if not all(number in (0, 1) for number in numbers):
            raise ProtocolFault("the data are no BOOL")
    elif any(type(number) is float for number in numbers):
        if not all(type(number) is int or number.is_integer() for number in numbers):
            raise ProtocolFault(f"the data are no {datatype}: a number is not whole")
        if any(type(number) is float and abs(number) > FP64_WHOLE for number in numbers):  # it may be the nearest to another
            raise ProtocolFault(f"the data are no {datatype}: write whole numbers beyond 2**53 without a point or an exponent")
        return list(map(int, numbers))
    return numbers


def flat(data: Any, shape: Sequence[int]) -> list[Any]:
    """The elements of a list, or of nested lists row by row.

    Raises ProtocolFault where two lists of one depth differ in length, or the lengths are not the shape's: it would be another
    order. Sides of one change none.
    """
    if not isinstance(data, list):
        raise ProtocolFault("the input has no data")
    found: list[Any] = data
    lengths = [len(data)]
    while found and isinstance(found[0], list):
        lengths.append(len(found[0]))
        if not all(isinstance(row, list) and len(row) == lengths[-1] for row in found):
            raise ProtocolFault("the data are lists of unequal length")
        found = [element for row in found for element in row]
    if len(lengths) > 1 and [side for side in lengths if side != 1] != [side for side in shape if side != 1]:
        raise ProtocolFault(f"the data are lists of {lengths[:MOST_SIDES]}, and the shape says {list(shape)}")
    return found


def packed(values: Sequence[Any], datatype: str) -> bytes:
    """Values as binary data."""
    if datatype != "BYTES":
        return np.asarray(values, NUMBERS[datatype]).tobytes()
    elements = map(element_of, values)
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def element_of(value: str | bytes) -> bytes:
    """A value as an element of BYTES: bytes as they are; half of a surrogate pair in a text as JSON's answers have it."""
    return value if isinstance(value, bytes) else value.encode("utf-8", "backslashreplace")
