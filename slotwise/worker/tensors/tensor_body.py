"""Read the records of a body of named tensors.

{"user": [0.1, 0.2], "item": [[1, 2], [3, 4]]}     one record          [{"user": ...}, ...]       several
{"instances": [{"user": ...}, ...]}                 the same
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge, Unprocessable

MAX_RECORDS = 256  # of one request
MOST_NUMBERS = 4_000_000  # of one request
AROUND = "instances"

Item = dict[str, Any]  # an array of its input's dtype and shape, by the input's name


@dataclass(frozen=True)
class NamedTensor:
    """One of a graph's inputs or outputs. dtype: numpy's. shape: of one record's, without the batch; () is one number."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers one record has of it."""
        return math.prod(self.shape)

    def read(self, value: Any) -> Any:
        """A value of JSON as an array. Raises Unprocessable, which names the input."""
        kind = np.dtype(self.dtype)
        taken = {"f": (int, float), "b": (bool,)}.get(kind.kind, (int,))
        numbers = list(self._flat(value, self.shape))
        if not all(type(number) in taken for number in numbers):
            raise Unprocessable(f"the input {self.name!r} takes {self.dtype}, and other values are there")
        if kind.kind in "iu" and numbers and not np.iinfo(kind).min <= min(numbers) <= max(numbers) <= np.iinfo(kind).max:
            raise Unprocessable(f"the input {self.name!r} takes {self.dtype}, and a number does not fit")
        try:
            with np.errstate(over="ignore"):  # 1e300 becomes infinity and is refused as such
                array = np.array(numbers, kind).reshape(self.shape)
        except OverflowError:
            raise Unprocessable(f"the input {self.name!r} takes {self.dtype}, and a number does not fit") from None
        if kind.kind == "f" and not np.isfinite(array).all():
            raise Unprocessable(f"the input {self.name!r} takes finite numbers that {self.dtype} holds")
        return array

    def _flat(self, value: Any, shape: Sequence[int]) -> Iterable[Any]:
        if not shape:
            return (value,)
        if not isinstance(value, list) or len(value) != shape[0]:
            raise Unprocessable(f"the input {self.name!r} must have the shape {list(self.shape)}")
        if len(shape) == 1:
            return value
        return [number for part in value for number in self._flat(part, shape[1:])]


def tensors_of(described: Iterable[Mapping[str, Any]]) -> list[NamedTensor]:
    """The tensors as slotwise.json has them."""
    return [NamedTensor(one["name"], one["dtype"], tuple(one["shape"])) for one in described]


def records_of(body: bytes, headers: Mapping[str, str], inputs: Sequence[NamedTensor]) -> list[Item | SlotError]:
    """The records of a body, each with its error in its place. Raises a SlotError where the body is bad as a whole."""
    if body.count(b",") > MOST_NUMBERS:
        raise TooLarge(f"the JSON has more than {MOST_NUMBERS} numbers")
    data = _parsed(body, inputs)
    if isinstance(data, dict):
        return [_record(data, inputs)]
    if not isinstance(data, list):
        raise Unprocessable(f"a record is an object of {_named(inputs)}")
    if not data:
        raise BadRequest("the request has no records")
    if len(data) > MAX_RECORDS:
        raise TooLarge(f"the request has {len(data)} records, at most {MAX_RECORDS} are taken at once")
    return [_or_error(one, inputs) for one in data]


def is_list_of_records(body: bytes, inputs: Sequence[NamedTensor]) -> bool:
    """Whether a body that `records_of` has read may hold several records, so that its answer is a list."""
    return isinstance(_parsed(body, inputs), list)


def _parsed(body: bytes, inputs: Sequence[NamedTensor]) -> Any:
    """What a body says as JSON, without what stands around it. Raises BadRequest."""
    try:
        data = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadRequest(f"send JSON: an object of {_named(inputs)}") from None
    wrapped = isinstance(data, dict) and data.keys() == {AROUND} and all(one.name != AROUND for one in inputs)
    return data[AROUND] if wrapped else data


def _or_error(data: Any, inputs: Sequence[NamedTensor]) -> Item | SlotError:
    try:
        return _record(data, inputs)
    except SlotError as error:
        return error


def _record(data: Any, inputs: Sequence[NamedTensor]) -> Item:
    if not isinstance(data, dict):
        raise Unprocessable(f"a record is an object of {_named(inputs)}")
    known = {one.name for one in inputs}
    unknown = next((name for name in data if name not in known), None)
    if unknown is not None:
        raise Unprocessable(f"there is no input {unknown[:40]!r}: there are {_named(inputs)}")
    absent = next((one.name for one in inputs if one.name not in data), None)
    if absent is not None:
        raise Unprocessable(f"the input {absent!r} is missing")
    return {one.name: one.read(data[one.name]) for one in inputs}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unprocessable("an input is there twice")
    return found


def _named(inputs: Sequence[NamedTensor]) -> str:
    return ", ".join(f"{one.name} {list(one.shape)}" for one in inputs[:20])
