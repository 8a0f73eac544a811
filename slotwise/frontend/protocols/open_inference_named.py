"""Named tensors in the Open Inference Protocol, one to one: each input is a tensor [n, ...], each output another.

A record is JSON, which holds every number of these types exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from slotwise.frontend.protocols.open_inference_tensors import V2_TYPES, flat, is_another, numbers_of, parts_of, shape_of
from slotwise.frontend.protocols.records import JSON, ModelInput, NamedShape, ProtocolFault, RecordBody, limited
from slotwise.worker.labels import decimals

NAMED = "tensors"  # what such a model takes
NUMBER_BYTES = 100  # of one in binary data: as Python has it, in a list, as JSON


def described_tensors(tensors: Iterable[NamedShape]) -> list[dict[str, Any]]:
    """Inputs or outputs as the model's metadata has them."""
    return [{"name": name, "datatype": V2_TYPES[dtype], "shape": [-1, *shape]} for name, dtype, shape in tensors]


def reading_named(model: ModelInput, size: int) -> int:
    """The most memory that `named_records` takes beside the request of `size` bytes, its result included."""
    return NUMBER_BYTES * size if model.takes == NAMED else 0


def named_records(tensors: Sequence[Mapping[str, Any]], binary: memoryview, model: ModelInput) -> list[RecordBody]:
    """A record a row of all inputs. The binary data of those that have some follow each other. Raises ProtocolFault."""
    wanted = {name: (V2_TYPES[dtype], list(shape)) for name, dtype, shape in model.inputs}
    columns: dict[str, list[Any]] = {}
    for tensor, part in zip(tensors, parts_of(tensors, binary), strict=True):
        name = tensor.get("name")
        if not isinstance(name, str) or name not in wanted:
            raise ProtocolFault(f"there is no input {str(name)[:40]!r}: there are {', '.join(map(repr, list(wanted)[:20]))}")
        if name in columns:
            raise ProtocolFault(f"the input {name!r} is there twice")
        datatype, sides = wanted[name]
        shape = shape_of(tensor)
        if tensor.get("datatype") != datatype or shape[1:] != sides:
            raise ProtocolFault(
                f"the input {name!r} must be {datatype} of the shape [n{''.join(f', {side}' for side in sides)}]"
            )
        limited(shape[0])
        columns[name] = numbers_of(tensor, shape, part).reshape(shape).tolist()
        if len(columns[name]) != len(next(iter(columns.values()))):
            raise ProtocolFault(f"the input {name!r} has {len(columns[name])} records, and {next(iter(columns))!r} has others")
    absent = next((name for name in wanted if name not in columns), None)
    if absent is not None:
        raise ProtocolFault(f"the input {absent!r} is missing")
    rows = zip(*columns.values(), strict=True)
    return [RecordBody(json.dumps(dict(zip(columns, row, strict=True))).encode(), JSON) for row in rows]


def has_outputs(outputs: Iterable[str], model: ModelInput, value: Any) -> bool:
    """Whether an answer has each of these outputs, in its shape, of numbers that its type holds."""
    known = {name: (_held_by(dtype), list(shape)) for name, dtype, shape in model.outputs}
    return isinstance(value, dict) and all(name in value and _fits(value[name], *known[name]) for name in outputs)


def named_values(
    outputs: Iterable[str], model: ModelInput, answers: Sequence[Any]
) -> Iterator[tuple[str, str, list[int], list[Any]]]:
    """Name, datatype, shape and values of each output that is wanted; what failed has zeros.

    answers: by name, as `has_outputs` has seen them; None for what failed.
    """
    known = {name: (dtype, list(shape)) for name, dtype, shape in model.outputs}
    for output in outputs:
        dtype, shape = known[output]
        empty: Any = [False if dtype == "bool" else 0] * math.prod(shape)
        values = [number for one in answers for number in (empty if one is None else flat([one[output]], [1, *shape]))]
        if np.dtype(dtype).kind != "f":  # 7.0 may stand for 7, and 1 for true
            values = list(map(bool if dtype == "bool" else int, values))
        yield output, V2_TYPES[dtype], [len(answers), *shape], values


def _fits(value: Any, held: Callable[[Any], bool], shape: Sequence[int]) -> bool:
    """Whether these are nested lists of this shape, of numbers that are held."""
    if not shape:
        return held(value)
    return isinstance(value, list) and len(value) == shape[0] and all(_fits(part, held, shape[1:]) for part in value)


@lru_cache
def _held_by(dtype: str) -> Callable[[Any], bool]:
    """What says whether this type holds a value; a fraction may be rounded, but no whole number becomes another.

    One that is written in as few digits as tell it apart is no other: float32's 123456792 is 123456790.0 there.
    """
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return lambda value: type(value) in (bool, int) and value in (0, 1)
    if kind.kind == "f":
        most = float(np.finfo(kind).max) * (1 + float(np.finfo(kind).eps) / 4)  # what is nearest to the largest one

        def held(value: Any) -> bool:
            if type(value) not in (int, float) or not abs(value) <= most:
                return False
            number = kind.type(value)
            return not is_another(value, number) or (type(value) is float and decimals(number) == [value])

        return held
    limits = np.iinfo(kind)
    return lambda value: type(value) in (int, float) and limits.min <= value <= limits.max and value % 1 == 0
