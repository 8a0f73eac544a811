"""The roofline formula against the published hand calculation, and the counting against sums made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.bench.roofline import ForwardCost, Machine, at, forward_cost
from slotwise.errors import SlotwiseError

# Published: a card of 21.75 TFLOP/s and 608.3 GB/s, and a CNN on 28x28 float32 pictures with ten classes.
CARD = Machine(21.75e12, 608.3e9)
CNN = ForwardCost(operations=84.686e6 / 12, weight_bytes=2.374e6 - 12 * 3176, io_bytes=4 * (28 * 28 + 10))


def test_the_published_hand_calculation() -> None:
    assert pytest.approx(35.75, abs=0.01) == CARD.ridge
    assert CNN.operations * 13 == pytest.approx(91.743e6, rel=1e-4)
    assert CNN.moved(12) == pytest.approx(2.374e6)
    assert CNN.moved(13) == pytest.approx(2.377e6, rel=1e-3)
    assert CNN.intensity(12) == pytest.approx(35.67, abs=0.01)
    assert CNN.intensity(13) == pytest.approx(38.59, abs=0.02)
    assert CNN.enough(CARD) == 13


def test_the_least_time_says_how_many_a_second_at_most() -> None:
    machine = Machine(peak=1e12, bandwidth=1e12)
    heavy = ForwardCost(operations=1e9, weight_bytes=8e6, io_bytes=0)  # 1 ms of arithmetic an item, 8 us of weights a batch
    assert at(heavy, 8, machine)["most_a_second"] == pytest.approx(1000)
    weights = ForwardCost(operations=1, weight_bytes=1e9, io_bytes=0)  # 1 ms of weights a batch, whatever is in it
    assert at(weights, 8, machine)["most_a_second"] == pytest.approx(8000)


work = st.builds(ForwardCost, st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0, 1e5), st.floats(0, 1e6))
machine = st.builds(Machine, st.floats(1e9, 1e15), st.floats(1e9, 1e13))


@given(work, machine, st.booleans())
def test_enough_is_the_least_batch_size_over_the_ridge(work: ForwardCost, machine: Machine, cached: bool) -> None:
    n = work.enough(machine, cached=cached)
    if n is None:
        assert work.intensity(10**9, cached=cached) <= machine.ridge * (1 + 1e-6)
    else:
        assert work.intensity(n + 1, cached=cached) >= machine.ridge * (1 - 1e-6)
        assert n == 1 or work.intensity(n - 1, cached=cached) < machine.ridge * (1 + 1e-6)


CONVOLUTION, PRODUCT = 2 * 8 * 26 * 26 * 9, 2 * 8 * 26 * 26 * 10
PARAMETERS = 8 * 9 + 8 + 8 * 26 * 26 * 10 + 10


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_work_is_counted_as_by_hand(form: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10)).eval()
    example = torch.zeros(1, 1, 28, 28)
    if form == "onnx":
        torch.onnx.export(module, (example,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    else:
        torch.jit.trace(module, example).save(tmp_path / "net.onnx")
    work = forward_cost(tmp_path, {"name": "net", "input": {"shape": [1, 28, 28]}, "weights": {form: "net.onnx"}})
    assert work.operations == CONVOLUTION + PRODUCT
    assert work.weight_bytes == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert work.io_bytes == 4 * (28 * 28 + 10)
    assert work.activation_bytes == 4 * (8 * 26 * 26 + 10)


def test_a_transposed_convolution_costs_what_its_input_meets(tmp_path: Path) -> None:
    """Each of its 4x5x5 inputs is multiplied with 3 channels of a 4x4 window; torch counts the same."""
    torch = pytest.importorskip("torch")
    module, example = torch.nn.ConvTranspose2d(4, 3, 4, stride=4).eval(), torch.zeros(1, 4, 5, 5)
    torch.onnx.export(module, (example,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    torch.jit.trace(module, example).save(tmp_path / "net.pt")
    counted = [
        forward_cost(tmp_path, {"input": {"shape": [4, 5, 5]}, "weights": {form: name}}).operations
        for form, name in (("onnx", "net.onnx"), ("torchscript", "net.pt"))
    ]
    assert counted == [2 * 4 * 5 * 5 * 3 * 4 * 4] * 2


def test_a_model_without_one_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match=r"input\.shape"):
        forward_cost(tmp_path, {"name": "translation"})
    with pytest.raises(SlotwiseError, match="neither"):
        forward_cost(tmp_path, {"name": "x", "input": {"shape": [1]}})
