"""Two outputs are compared whatever they are made of, and only what an engine rounds counts as numbers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slotwise.worker.separability.bits import Deviation, bits, difference, holds_floats, largest, padded_difference

FAR = Deviation(np.inf, np.inf)


@pytest.mark.parametrize(
    ("expected", "observed", "apart"),
    [
        (SimpleNamespace(a=2.0, b="x"), SimpleNamespace(a=2.0, b="x"), Deviation()),
        (SimpleNamespace(a=2.0, b="x"), SimpleNamespace(a=3.0, b="x"), Deviation(1.0, 0.5)),
        (SimpleNamespace(a=2.0), SimpleNamespace(b=2.0), FAR),
        ((1.0, "x"), (1.25, "x"), Deviation(0.25, 0.25)),
        (np.ones(3), np.ones(4), FAR),
        (np.array([3 + 4j]), np.array([3 + 5j]), Deviation(1.0, 0.2)),
        (np.array([1.0, 2.0]), np.array([1.0, np.nan]), FAR),
        ({"a": [4.0, {"b": np.zeros(2)}]}, {"a": [3.0, {"b": np.ones(2)}]}, Deviation(1.0, 1.0)),
        ({"a": 1.0}, {"b": 1.0}, FAR),
        ([1.0], [1.0, 2.0], FAR),
        ("a", "b", FAR),
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 4.0])], Deviation(2.0, 1.0)),
        ([{"box": torch.ones(2)}], [{"box": torch.ones(3)}], FAR),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), Deviation()),
    ],
)
def test_how_far_two_outputs_are_apart(expected: Any, observed: Any, apart: Deviation) -> None:
    assert difference(expected, observed) == apart


def test_zeros_of_two_signs_and_numbers_of_two_kinds_are_not_the_same_to_the_bit() -> None:
    assert bits(0.0) != bits(-0.0)
    assert bits(np.float32(0.0)) != bits(np.float32(-0.0))
    assert bits(np.float32(1)) != bits(np.float64(1))
    assert bits([np.nan]) == bits((np.nan,))


class Slotted:
    """Keeps its number where no `__dict__` shows it."""

    __slots__ = ("number",)

    def __init__(self, number: Any) -> None:
        self.number = number


class Unseen(threading.local):
    """Keeps what it holds where nobody who copies it finds it."""

    def __deepcopy__(self, memo: Any) -> Unseen:
        return Unseen()


def test_objects_are_compared_by_what_a_copy_of_them_is_made_of() -> None:
    assert bits(Slotted(1.0)) == bits(Slotted(1.0)) != bits(Slotted(2.0))
    assert bits(Slotted(torch.ones(2))) != bits(Slotted(torch.zeros(2)))
    assert bits(complex(1, 2)) != bits(complex(1, 3))
    assert bits(np.array(["a" * 40], np.dtypes.StringDType())) != bits(np.array(["b" * 40], np.dtypes.StringDType()))
    assert difference(Slotted(1.0), Slotted(2.0)) == FAR


def test_what_nobody_can_look_into_is_like_nothing_else() -> None:
    assert bits(Unseen()) != bits(Unseen())
    assert bits([threading.Lock()]) != bits([threading.Lock()])


def test_tensors_are_arrays_wherever_they_are() -> None:
    assert largest([{"box": torch.tensor([1.0, -3.0])}]) == 3.0
    assert holds_floats([{"box": torch.ones(2)}])
    assert holds_floats(SimpleNamespace(score=torch.ones(1)))
    assert not holds_floats([torch.arange(2)])
    assert padded_difference([torch.ones(2)], [torch.ones(5)]) == Deviation()


@pytest.mark.parametrize("value", [1.0, np.float32(1), np.zeros(2), {"a": {"b": 0.5}}, [1, (2, 0.5)]])
def test_numbers_that_an_engine_rounds(value: Any) -> None:
    assert holds_floats(value)


@pytest.mark.parametrize("value", [1, "7", np.arange(2), {"a": "b"}, [], {}])
def test_what_is_no_such_number(value: Any) -> None:
    assert not holds_floats(value)


@pytest.mark.parametrize("as_one", [str, str.encode, lambda text: [text], np.array, lambda text: np.array([text], object)])
def test_texts_of_digits_are_no_numbers(as_one: Any) -> None:
    assert difference(as_one("1000002"), as_one("1000009")) == FAR
    assert difference(as_one("1000002"), as_one("1000002")) == Deviation()
