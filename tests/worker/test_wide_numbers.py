"""OpenVINO serves no graph that it would compute in fewer bits than the graph says; other whole numbers do not keep it away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

graphs = pytest.importorskip("tests.archive.graphs")
openvino = pytest.importorskip("openvino")
from slotwise.archive.build import build  # noqa: E402
from slotwise.worker.engines.openvino import OpenVinoEngine  # noqa: E402
from slotwise.worker.engines.wide_numbers import wide_number  # noqa: E402
from tests.archive.graphs import FLOAT, INT64, node  # noqa: E402
from tests.worker.serving import Served  # noqa: E402

onnx = graphs.onnx
INT32, DOUBLE, UINT8 = onnx.TensorProto.INT32, onnx.TensorProto.DOUBLE, onnx.TensorProto.UINT8
TABLE = {"t": np.arange(10, dtype=np.float32).reshape(10, 1)}
LOOK_UP = [node("Gather", "t x", "y")]


def why(
    folder: Path, nodes: Any, kind: int, made: int, weights: dict[str, Any], *, looked_up: bool = False, sides: Any = None
) -> str:
    info = onnx.helper.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    body = onnx.helper.make_graph(nodes, "net", [info("x", kind, ["b", 4])], [info("y", made, sides)], arrays)
    onnx.save(onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), folder / "n.onnx")
    return wide_number(openvino.Core().read_model(folder / "n.onnx"), looked_up=looked_up)


def branches(kind: int) -> dict[str, Any]:
    """Both make this kind of x."""
    info = onnx.helper.make_tensor_value_info("q", FLOAT, None)
    nodes = [node("Cast", "x", "w", to=kind), node("Cast", "w", "q", to=FLOAT)]
    return {f"{name}_branch": onnx.helper.make_graph(nodes, name, [], [info]) for name in ("then", "else")}


@pytest.mark.parametrize(
    ("nodes", "kind", "made", "weights", "said"),
    [
        ([node("Mod", "x k", "m"), node("Gather", "t m", "y")], INT64, FLOAT, {**TABLE, "k": np.array([10])}, "the int64 of x"),
        (LOOK_UP, INT32, FLOAT, TABLE, "the int32 of x"),
        ([node("Sub", "x c", "y")], DOUBLE, DOUBLE, {"c": np.array([16777216.0])}, "the float64 of x"),
        ([node("Cast", "x", "y", to=INT64)], FLOAT, INT64, {}, "the int64 of y"),
        ([node("Cast", "x", "y", to=INT32)], FLOAT, INT32, {}, "the int32 of y"),
        ([node("Cast", "x", "d", to=DOUBLE), node("Cast", "d", "y", to=FLOAT)], FLOAT, FLOAT, {}, "the float64 of d"),
        ([node("ArgMax", "x", "i", axis=1), node("Gather", "n i", "y")], FLOAT, INT64, {"n": np.array([1, 2**40, 3, 4])},
         "no 64 bits for the constants of n"),
        ([node("ReduceMax", "x", "r", keepdims=0), node("Greater", "r z", "c"), node("If", "c", "y", **branches(INT64))],
         FLOAT, FLOAT, {"z": np.float32(0)}, "the int64 of w"),
        ([node("ArgMax", "x", "i", axis=1), node("Mul", "i k", "y")], FLOAT, INT64, {"k": np.array([1_000_000_007])},
         "the int64 of y"),
        ([node("TopK", "x o", "v i"), node("Mul", "i k", "m"), node("Mul", "m k", "d"), node("Mod", "d k", "y")],
         FLOAT, INT64, {"o": np.array([2]), "k": np.array([100_000])}, "the int64 of d"),
        ([node("Shape", "x", "s"), node("Mul", "s k", "y")], FLOAT, INT64, {"k": np.array([10_000])}, "the int64 of y"),
    ],
)  # fmt: skip
def test_numbers_of_a_request_that_openvino_does_not_compute_exactly(
    tmp_path: Path, nodes: Any, kind: int, made: int, weights: dict[str, Any], said: str
) -> None:
    assert said in why(tmp_path, nodes, kind, made, weights)


@pytest.mark.parametrize(
    ("nodes", "made", "weights"),
    [
        ([node("ArgMax", "x", "y", axis=1, keepdims=0)], INT64, {}),
        ([node("TopK", "x k", "v i"), node("Div", "i k", "y")], INT64, {"k": np.array([2])}),
        ([node("TopK", "x k", "v i"), node("Div", "i k", "r"), node("Mod", "i k", "c"), node("Concat", "r c", "y", axis=1)],
         INT64, {"k": np.array([2])}),
        ([node("ArgMax", "x", "i", axis=1), node("Cast", "i", "f", to=FLOAT), node("Div", "f w", "d"), node("Floor", "d", "r"),
          node("Cast", "r", "y", to=INT64)], INT64, {"w": np.array([2], np.float32)}),
        ([node("Greater", "x z", "g"), node("Cast", "g", "i", to=INT64), node("CumSum", "i a", "n"), node("Add", "n a", "y")],
         INT64, {"z": np.zeros(1, np.float32), "a": np.array(1)}),
        ([node("ArgMax", "x", "i", axis=1), node("Mul", "i k", "y")], INT64, {"k": np.array([100_000_000])}),
        ([node("ArgMax", "x", "i", axis=1), node("Equal", "i k", "e"), node("Where", "e k n", "y")],
         INT64, {"k": np.array([2]), "n": np.array([7])}),
        ([node("Unsqueeze", "x o", "u"), node("MaxPool", "u", "y", kernel_shape=[2])], FLOAT, {"o": np.array([1])}),
        ([node("Shape", "x", "s"), node("Mul", "s k", "m"), node("Div", "m k", "d"), node("Reshape", "x d", "y")],
         FLOAT, {"k": np.array([2])}),
        ([node("Shape", "x", "s", end=1), node("Squeeze", "s", "b"), node("Range", "z b o", "r"), node("Mul", "r k", "y")],
         INT64, {"z": np.array(0), "o": np.array(1), "k": np.array(512)}),
        ([node("Slice", "x a e a", "y")], FLOAT, {"a": np.array([1]), "e": np.array([2**63 - 1])}),
        ([node("Greater", "x z", "g"), node("Cast", "g", "y", to=INT64)], INT64, {"z": np.zeros(1, np.float32)}),
        ([node("DynamicQuantizeLinear", "x", "q s o"), node("MatMulInteger", "q w o", "m"), node("Cast", "m", "y", to=FLOAT)],
         FLOAT, {"w": np.ones((4, 3), np.int8)}),
        ([node("If", "c", "y", **branches(FLOAT))], FLOAT, {"c": np.array(True)}),
    ],
)  # fmt: skip
def test_shapes_places_and_small_numbers_are_computed_there(
    tmp_path: Path, nodes: Any, made: int, weights: dict[str, Any]
) -> None:
    assert why(tmp_path, nodes, FLOAT, made, weights) == ""


@pytest.mark.parametrize("held", [np.int32, np.int64])
def test_whole_numbers_that_a_graph_gives_are_those_of_the_graph(tmp_path: Path, held: Any) -> None:
    ids = np.array([16777217, 123456789, 2000000011, 5], held)
    nodes = [node("ArgMax", "x", "i", axis=1), node("Gather", "n i", "y")]
    assert why(tmp_path, nodes, FLOAT, INT64 if held is np.int64 else INT32, {"n": ids}) == ""
    engine = OpenVinoEngine(openvino.Core().compile_model(tmp_path / "n.onnx", "CPU"), "fp32")
    assert engine(np.eye(4, dtype=np.float32)).ravel().tolist() == ids.tolist()


def test_an_authors_own_handler_looks_up_what_its_table_has(tmp_path: Path) -> None:
    """Whoever sends numbers to a given handler may send any; an author's tokenizer has a vocabulary."""
    assert why(tmp_path, LOOK_UP, INT64, FLOAT, TABLE)
    assert why(tmp_path, LOOK_UP, INT64, FLOAT, TABLE, looked_up=True) == ""
    hashed = [node("Mod", "x k", "m"), node("Gather", "t m", "y")]
    assert why(tmp_path, hashed, INT64, FLOAT, {**TABLE, "k": np.array([10])}, looked_up=True)


def test_auto_takes_another_engine_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    hashed = [node("Mod", "x k", "m"), node("Gather", "t m", "g"), node("ReduceSum", "g d", "y", keepdims=0)]
    why(tmp_path, hashed, INT64, FLOAT, {**TABLE, "k": np.array([10]), "d": np.array([2])}, sides=["b", 4])
    (tmp_path / "model.toml").write_text(
        'name = "n"\nhandler = "tensor_classifier"\noutput = "regression"\n[input]\nshape = [4]\ndtype = "int64"\n'
        '[weights]\nonnx = "n.onnx"\n'
    )
    served = Served.of(build(tmp_path, tmp_path / "store", prove=lambda *_: None), {})
    assert served.handler.engine.name == "onnxruntime"
    (answer,) = served.ask([b"[7, 2147483655, 1099511627783, 9007199254740993]"], [{"Content-Type": "application/json"}])
    assert answer.value["values"] == [7.0, 5.0, 3.0, 3.0]
