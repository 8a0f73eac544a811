"""Graphs with a batch fixed at 1, as the classic MNIST one has: made dynamic where three rows at once come out right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.network.onnx_graph import prepare
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.environment.settings import Settings
from slotwise.worker.labels import wants_softmax

pytestmark = pytest.mark.usefixtures("own_home")

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

DRAW = np.random.default_rng(0)


def spec(**described: Any) -> ModelSpec:
    given = {"shape": [1, 8, 8], **described}
    return ModelSpec.model_validate(
        {"name": "old", "handler": "tensor_classifier", "input": given, "weights": {"onnx": "old.onnx"}}
    )


def graph(path: Path, flat: list[int], batch: int | str = 1, opset: int = 8) -> Path:
    """Convolution, ReLU, Reshape to `flat`, product: opset 8, the weights listed as inputs as old exporters did."""
    h = onnx.helper
    weights = {
        "kernel": DRAW.normal(size=(4, 1, 3, 3)).astype(np.float32),
        "flat": np.array(flat, np.int64),
        "matrix": DRAW.normal(size=(4 * 36 if flat[0] in (1, -1) else 36, 10)).astype(np.float32),
    }
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    nodes = [
        h.make_node("Conv", ["x", "kernel"], ["c"]),
        h.make_node("Relu", ["c"], ["r"]),
        h.make_node("Reshape", ["r", "flat"], ["f"]),
        h.make_node("MatMul", ["f", "matrix"], ["y"]),
    ]
    rows = flat[0] if flat[0] != 1 else batch
    inputs = [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 1, 8, 8])]
    inputs += [h.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in tensors]
    outputs = [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [rows, 10])]
    model = h.make_model(
        h.make_graph(nodes, "old", inputs, outputs, tensors), opset_imports=[h.make_opsetid("", opset)], ir_version=3
    )
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_fixed_batch_is_made_dynamic_and_rows_stay_what_they_were(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    source = graph(tmp_path / "old.onnx", [1, 144])
    folder, facts = prepare(spec(), source)
    assert facts == {"input": "x", "opset": "8 -> 17", "batch": "made dynamic"}
    assert folder is not None
    rows = DRAW.normal(size=(5, 1, 8, 8)).astype(np.float32)
    assert np.allclose(run(engine, folder, rows), run("onnxruntime", tmp_path, rows), atol=1e-3)
    assert prepare(spec(), source)[0] == folder


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_graph_that_mixes_rows_is_run_row_by_row(tmp_path: Path, engine: str) -> None:
    """Its Reshape takes the batch apart: with three rows at once it fails or mixes them."""
    pytest.importorskip(engine)
    folder, facts = prepare(spec(), graph(tmp_path / "old.onnx", [4, 36]))
    assert facts["batch"] == "row by row"
    assert folder is not None
    rows = DRAW.normal(size=(3, 1, 8, 8)).astype(np.float32)
    together = run(engine, folder, rows)
    assert together.shape == (12, 10)
    assert np.allclose(together[4:8], run(engine, folder, rows[1:2]), atol=1e-5)


def run(engine: str, folder: Path, rows: Any) -> Any:
    """The rows through one of the worker's engines."""
    from slotwise.worker.engines import load_engine

    return load_engine(folder, Settings(engine=engine, precision="fp32", model={"weights": {"onnx": "old.onnx"}}))(rows)


def test_a_dynamic_graph_of_a_new_opset_is_left_alone(tmp_path: Path) -> None:
    source = graph(tmp_path / "old.onnx", [-1, 144], batch="b", opset=17)
    assert prepare(spec(), source) == (None, {"input": "x", "opset": "17", "batch": "dynamic"})


@pytest.mark.parametrize(
    ("batch", "described", "said"),
    [
        (4, {}, "fixed at 4"),
        (1, {"shape": [3, 8, 8]}, "1x1x8x8"),
        (1, {"shape": [64]}, "input.shape"),
        (1, {"name": "pixels"}, "pixels"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, batch: int, described: dict[str, Any], said: str) -> None:
    with pytest.raises(SlotwiseError, match=said):
        prepare(spec(**described), graph(tmp_path / "old.onnx", [batch, 144], batch=batch))


def test_a_softmax_at_the_end_is_seen_and_not_applied_twice(tmp_path: Path) -> None:
    path = graph(tmp_path / "old.onnx", [-1, 144], "n", opset=17)
    assert "softmax" not in prepare(spec(), path)[1]
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "logits"
    model.graph.node.append(onnx.helper.make_node("Softmax", ["logits"], ["y"]))
    onnx.save(model, path)
    facts = prepare(spec(), path)[1]
    assert facts["softmax"] is True
    assert wants_softmax({}) is wants_softmax({"options": {"onnx": {}}}) is True
    assert wants_softmax({"options": {"onnx": facts}}) is wants_softmax({"options": {"softmax": False}}) is False
    assert wants_softmax({"options": {"onnx": facts, "softmax": True}}) is True


def test_no_graph_at_all(tmp_path: Path) -> None:
    (tmp_path / "old.onnx").write_bytes(b"no graph")
    with pytest.raises(SlotwiseError, match="no ONNX graph"):
        prepare(spec(), tmp_path / "old.onnx")
