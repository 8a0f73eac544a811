"""How outputs are cut into rows: what is read as rows, what as columns, and what as neither."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BadRequest, BatchHandler, Headers, Settings
from slotwise.worker.answer import Refusal
from slotwise.worker.hooks import ENOUGH
from slotwise.worker.outputs import NOT_FINITE, UNREADABLE, WrongCount, finite, on_host, rows_of, ways_to_read
from tests.worker.toy import Toy, ask, begin


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_tuple_of_more_columns_than_rows_keeps_all_of_them(n: int) -> None:
    columns = tuple(np.full(n, k) for k in range(6))
    assert rows_of(columns, n, n, "6 columns") == [(0, 1, 2, 3, 4, 5)] * n


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_model_with_four_outputs_is_answered_with_four(batch_size: int) -> None:
    class Four(BatchHandler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return lambda inputs: tuple(k * inputs for k in range(4))

        def example(self) -> Any:
            return np.ones(1)

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [np.array([float(body)])]

        def encode(self, output: Any, item: Any) -> Any:
            return [float(part[0]) for part in output]

    handler = begin(Four(), Settings(batch_size=batch_size))
    answers = ask(handler, [b"1", b"10", b"5"][:batch_size])
    assert [answer.value for answer in answers] == [[0, 1, 2, 3], [0, 10, 20, 30], [0, 5, 10, 15]][:batch_size]


def test_a_wrong_count_says_to_the_log_how_many_and_to_the_client_nothing() -> None:
    for outputs, way, said in (
        (np.zeros(2), "", "2 outputs for 3 rows"),
        (np.zeros(2), "2 columns", "2 outputs for 3 rows"),
        (np.zeros((3, 2)), "2 columns", "3 outputs for 3 rows"),
        (np.array(1.0), "", "uncountable outputs for 3 rows"),
        ([1], "", "1 outputs for 3 rows"),
        (7, "", "uncountable outputs for 3 rows"),
    ):
        with pytest.raises(WrongCount) as caught:
            rows_of(outputs, 3, 3, way)
        assert (str(caught.value), caught.value.message) == (said, "the model gave a wrong number of outputs")


@pytest.mark.parametrize(
    ("outputs", "ways"),
    [
        ((np.zeros(2), np.ones(2)), {"2 columns", "rows"}),
        ((np.zeros(2), np.array(1.0)), {"rows"}),  # no column: it has no rows
        ((np.zeros(2), np.zeros(3)), {"rows"}),
        ((np.zeros(2), [1, 2]), {"rows"}),
        ((), set()),
        ([np.zeros(2), np.ones(2)], {"rows"}),
        ([1, 2, 3], set()),
        (np.zeros((2, 3)), {"rows"}),
        (np.zeros(3), set()),
        (np.array(1.0), set()),
        ({"a": np.zeros(2), "b": [1, 2], "c": (1, 2)}, {"columns ('a', 'b', 'c')"}),
        ({"a": [1, 2, 3]}, set()),
        ({"a": "xy"}, set()),
        ({"a": np.array(1.0)}, set()),
        ({"a": np.zeros(2), 1: np.zeros(2)}, set()),
        ({}, set()),
        ("xy", set()),
        (b"xy", set()),
        (bytearray(2), set()),
        (memoryview(b"xy"), set()),
        (range(2), set()),
        (7, set()),
        (None, set()),
    ],
    ids=lambda value: ", ".join(sorted(value)) if isinstance(value, set) else type(value).__name__,
)
def test_in_which_ways_outputs_are_two_rows(outputs: Any, ways: set[str]) -> None:
    assert set(ways_to_read(outputs, 2)) == ways


def test_what_gives_its_rows_one_by_one_is_read_as_rows() -> None:
    assert set(ways_to_read(iter([1, 2]), 2)) == {"rows"}
    assert set(ways_to_read(iter([1]), 2)) == set()


def test_only_the_rows_that_were_asked_for_are_cut() -> None:
    assert rows_of(np.arange(4), 4, 2) == [0, 1]
    assert rows_of([1, 2, 3, 4], 4, 2) == [1, 2]
    assert rows_of((np.arange(3), np.arange(3)), 3, 2, "2 columns") == [(0, 0), (1, 1)]
    assert rows_of({"a": [1, 2, 3], "b": np.arange(3)}, 3, 2) == [{"a": 1, "b": 0}, {"a": 2, "b": 1}]


def test_outputs_that_never_end_are_one_too_many() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(1)
            yield len(taken)
            assert len(taken) < 99

    with pytest.raises(WrongCount):
        rows_of(endless(), 3, 3)
    assert len(taken) == 4


def test_a_row_that_is_not_finite_or_cannot_be_looked_at_is_refused_alone() -> None:
    rows = rows_of(np.array([1.0, np.nan, 3.0, -np.inf]), 4, 4)
    assert rows[0::2] == [1.0, 3.0]
    assert rows[1::2] == [NOT_FINITE, NOT_FINITE]
    itself: list[Any] = []
    itself.append(itself)
    refused = BadRequest("mine")
    assert rows_of([1.0, [np.inf], {"a": [float("nan")]}, itself, (x for x in [1]), refused, "text"], 7, 7) == [
        1.0,
        NOT_FINITE,
        NOT_FINITE,
        UNREADABLE,
        UNREADABLE,
        Refusal.of(refused),
        "text",
    ]


@pytest.mark.parametrize(
    "value", [None, "nan", b"nan", 7, True, 1.5, [1.0, [2.0]], {"a": (1.0,)}, np.arange(3), np.array(["nan"])]
)
def test_what_is_finite(value: Any) -> None:
    assert finite(value)


@pytest.mark.parametrize(
    "value", [float("nan"), [1.0, float("inf")], {"a": (np.nan,)}, np.array([1, np.inf]), np.array([1j * np.inf])]
)
def test_what_is_not_finite(value: Any) -> None:
    assert not finite(value)


class Tensor:
    """As torch has one, on a device."""

    def __init__(self, values: Any, device: str = "cuda", grad: bool = True) -> None:
        self.values, self.device, self.grad = np.asarray(values), device, grad

    def detach(self) -> Tensor:
        return Tensor(self.values, self.device, False)

    def cpu(self) -> Tensor:
        return Tensor(self.values, "cpu", self.grad)

    def is_floating_point(self) -> bool:
        return self.values.dtype.kind == "f"

    def element_size(self) -> int:
        return int(self.values.itemsize)

    def float(self) -> Tensor:
        return Tensor(self.values.astype(np.float32), self.device, self.grad)

    def numpy(self) -> Any:
        assert (self.device, self.grad) == ("cpu", False)
        return self.values


def test_a_tensor_comes_to_the_host_as_an_array() -> None:
    for given, wanted in ((np.float16, np.float32), (np.float32, np.float32), (np.int64, np.int64)):
        array = on_host(Tensor(np.arange(3, dtype=given)))
        assert isinstance(array, np.ndarray)
        assert array.dtype == wanted
        assert array.tolist() == [0, 1, 2]
    assert rows_of([Tensor([1, 2]), Tensor([3, 4])], 2, 2)[0].values.tolist() == [1, 2]  # type: ignore[attr-defined]


def test_only_half_precision_becomes_float32() -> None:
    torch = pytest.importorskip("torch")
    kinds = {torch.float16: np.float32, torch.bfloat16: np.float32, torch.float32: np.float32, torch.float64: np.float64}
    assert [on_host(torch.ones(1, dtype=kind)).dtype for kind in kinds] == list(kinds.values())
    precise = torch.tensor([16777217.0, 1e300], dtype=torch.float64)
    assert on_host(precise).tolist() == [16777217.0, 1e300]


def test_what_can_be_an_array_becomes_one_and_all_else_stays() -> None:
    class Arrayed:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.arange(2)

    array = on_host(Arrayed())
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0, 1]
    for value in (np.arange(2), [1], (1,), {"a": 1}, np.float32(1), "text", None, 7):
        assert on_host(value) is value


@pytest.mark.parametrize("form", ["rows", "dict", "tuple", "list"])
def test_one_object_in_the_rows_of_many_is_a_copy_for_each(form: str) -> None:
    column: Any = np.empty(2, object)
    column[0] = column[1] = ["cat"]
    outputs = {"rows": column, "dict": {"a": column}, "tuple": (column,) * 3, "list": {"a": list(column)}}[form]
    one, other = rows_of(outputs, 2, 2, "" if form == "rows" else next(iter(ways_to_read(outputs, 2))))
    part: Any = {"rows": lambda row: row, "tuple": lambda row: row[0]}.get(form, lambda row: row["a"])
    part(one).append("mine")
    assert part(other) == ["cat"]


def refilled(value: Any, fill: Any) -> Any:
    """A model that has one place for each row's output."""

    def model(inputs: Any) -> Any:
        outputs = []
        for row in inputs:
            fill(value, float(row[0]))
            outputs.append(value)
        return outputs

    return model


class Lazy(Sequence[Any]):
    """Rows that are made when they are asked for, all in one place."""

    def __init__(self, inputs: Any) -> None:
        self.inputs, self.place = inputs, np.zeros(1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: Any) -> Any:
        self.place[:] = self.inputs[i]
        return self.place


BUFFER = np.zeros(1)
REFILLED = {
    "array": refilled(np.zeros(1), lambda place, x: place.fill(x)),
    "dict": refilled({}, lambda place, x: place.update(x=x)),
    "list within": refilled({"x": [0]}, lambda place, x: place["x"].__setitem__(0, x)),
    "views": lambda inputs: [(BUFFER.fill(row[0]), BUFFER[:])[1] for row in inputs],
    "in a named output": lambda inputs: {"x": REFILLED["array"](inputs), "n": [1] * len(inputs)},
    "sequence": Lazy,
    "array of objects": lambda inputs: np.array([*REFILLED["dict"](inputs), None], object)[:-1],
}


class Kept(Toy):
    """A model of the test's, which is asked without an example."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.double = model

    def example(self) -> Any:
        return None

    encode = BatchHandler.encode

    def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
        return json.dumps(results, default=np.ndarray.tolist), "application/json"


@pytest.mark.parametrize("model", REFILLED.values(), ids=REFILLED)
def test_who_fills_one_object_again_for_each_row_answers_each_with_its_own(model: Any) -> None:
    alone = [ask(begin(Kept(model), Settings(batch_size=8)), [body])[0].value for body in (b"[1]", b"[2]", b"[3]")]
    handler = begin(Kept(model), Settings(batch_size=8))
    for _ in range(2):
        assert [answer.value for answer in ask(handler, [b"[1]", b"[2]", b"[3]"])] == alone


def test_rows_that_share_what_is_the_same_alone_run_together_again() -> None:
    names = ["cat", "dog"]
    handler = Kept(None)
    handler.double = lambda inputs: handler.calls.append(inputs) or [{"names": names, "x": float(x)} for (x,) in inputs]
    begin(handler, Settings(batch_size=8))
    calls = []
    for _ in range(ENOUGH + 1):
        before = len(handler.calls)
        assert [answer.value[0]["x"] for answer in ask(handler, [b"[1]", b"[2]"])] == [1, 2]
        calls.append(len(handler.calls) - before)
    assert calls[1:] == [3] * (ENOUGH - 1) + [1]
