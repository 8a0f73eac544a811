"""What is owned is a copy that nobody can change, or what nobody can change anyway."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from slotwise.worker.copies import copied
from slotwise.worker.ownership import owned
from tests.worker.untidy import Pair


def test_numbers_of_numpy_are_not_copied_but_a_record_is() -> None:
    number, record = np.float32(1), np.zeros(1, [("a", int)])[0]
    assert owned([number])[0] is number  # type: ignore[index]
    own = owned([record])[0]  # type: ignore[index]
    record["a"] = 7
    assert own["a"] == 0


def test_an_array_of_objects_is_copied_with_what_is_in_it() -> None:
    array = np.array([[1], {"a": 1}], dtype=object)
    own = owned(array)
    array[0].append(2)
    assert isinstance(own, np.ndarray)
    assert own[0] == [1]


def test_an_array_that_shows_what_may_change_is_copied() -> None:
    for source in (bytearray(8), memoryview(bytearray(8)), np.zeros(8, np.uint8)):
        array = np.frombuffer(source, np.uint8)
        own = owned(array)
        assert isinstance(own, np.ndarray)
        assert not np.shares_memory(own, array)


class Tensor:
    """As torch has one."""

    def __init__(self, values: list[int], grad: bool = True) -> None:
        self.values, self.grad = values, grad

    def clone(self) -> Tensor:
        return Tensor(list(self.values), self.grad)

    def detach(self) -> Tensor:
        return Tensor(self.values, False)

    def __deepcopy__(self, memo: Any) -> Tensor:
        raise AssertionError("copied as an object")


def test_a_tensor_is_cloned_and_has_no_gradient() -> None:
    tensor = Tensor([1, 2])
    for own in (owned(tensor), owned([tensor])[0], owned({"a": tensor})["a"]):  # type: ignore[index]
        assert isinstance(own, Tensor)
        assert own.values == [1, 2]
        assert own.values is not tensor.values
        assert not own.grad


def test_what_only_has_a_clone_is_copied_as_an_object() -> None:
    class Voice:
        clone = None

    class Sheep:
        def clone(self) -> None:
            raise AssertionError("called")

    for value in (Voice(), Sheep()):
        own = owned(value)
        assert type(own) is type(value)
        assert own is not value


def test_what_is_in_a_container_is_copied_with_it() -> None:
    array = np.arange(2)
    own: Any = owned([([1], 2), {"a": array}])
    array[:] = 7
    assert own[0] == ([1], 2)
    assert own[1]["a"].tolist() == [0, 1]


def test_a_subclass_stays_what_it_is() -> None:
    class Mine(list[Any]):
        pass

    inner = [1]
    for value in (Mine([inner]), OrderedDict(a=inner), Pair(inner, inner)):
        own = owned(value)
        assert type(own) is type(value)
        assert own == value
        inner.append(1)
        assert own != value
        inner.pop()


def test_a_frozen_dataclass_of_values_is_not_copied_and_every_other_is() -> None:
    @dataclass(frozen=True)
    class Fixed:
        one: object
        two: object = 1

    @dataclass
    class Open:
        one: object

    for value in (Fixed(1), Fixed("text", None)):
        assert owned(value) is value
    for open_one in (Fixed([1]), Fixed(1, [1]), Fixed([1], 1), Open(1)):
        own = owned(open_one)
        assert own == open_one
        assert own is not open_one
    assert owned(Open) is Open, "a class is no value of its own"


def test_what_is_in_two_places_is_in_two_places_of_the_copy_too() -> None:
    shared: list[Any] = [1]
    copy: Any = copied({"a": shared, "b": [shared, shared], "c": (shared,), "d": 1.5})
    assert copy == {"a": [1], "b": [[1], [1]], "c": ([1],), "d": 1.5}
    assert copy["a"] is copy["b"][0] is copy["b"][1]
    shared.append(2)
    assert (copy["a"], copy["c"]) == ([1], ([1],))
    one, two = {1}, {2}
    sets: Any = copied([one, two, one])
    assert sets == [{1}, {2}, {1}]
    assert sets[0] is sets[2]
    one.add(3)
    assert sets[0] == {1}


def test_dicts_nested_deeper_than_python_calls_are_copied_as_well() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"deep": deep, "more": [1, {"a": None}]}
    copy: Any = owned(deep)
    for _ in range(5000):
        assert copy is not deep
        assert copy["more"] == [1, {"a": None}]
        assert copy["more"] is not deep["more"]
        deep, copy = deep["deep"], copy["deep"]
    assert copy == {}


def test_what_holds_itself_is_copied_as_it_is() -> None:
    itself: list[Any] = []
    itself.append(itself)
    copy: Any = owned(itself)
    assert copy is not itself
    assert copy[0] is copy


@pytest.mark.parametrize(
    "array",
    [
        np.arange(500, dtype="f4"),
        np.arange(784, dtype="u1").reshape(28, 28, 1),
        np.arange(2 * 3 * 200, dtype=">f8").reshape(2, 3, 200),
        np.asfortranarray(np.arange(900, dtype="f4").reshape(30, 30)),
        np.arange(2000, dtype="i8")[::2],
        np.arange(900).reshape(30, 30) % 2 == 0,
        np.arange(900, dtype="c8"),
        np.arange(600).astype("M8[s]"),
        np.arange(70_000, dtype="u1"),
        np.zeros((0, 600), "f4"),
        np.array(7.0),
    ],
    ids=lambda array: f"{array.dtype.str}-{array.shape}-{array.flags.c_contiguous}",
)
def test_an_array_of_any_size_kind_and_order_is_copied_as_it_is(array: np.ndarray) -> None:
    before = array.tobytes()
    own = owned(array)
    assert isinstance(own, np.ndarray)
    assert (own.dtype, own.shape, own.tobytes()) == (array.dtype, array.shape, before)
    assert own.flags.writeable
    assert not np.shares_memory(own, array)
    array[...] = np.zeros((), array.dtype)
    assert own.tobytes() == before
    assert owned(own) is not own
    assert not np.shares_memory(owned(own), own)
