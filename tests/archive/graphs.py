"""ONNX graphs made node by node, as other tools export them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
Shape = Sequence[int | str]


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; inputs and outputs are names with blanks between them."""
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    outputs: Mapping[str, tuple[int, Shape]],
    weights: Mapping[str, Any],
    shape: Shape,
) -> None:
    """A graph with one input, `x`. outputs: type and shape by name."""
    made = [onnx.helper.make_tensor_value_info(name, kind, sides) for name, (kind, sides) in outputs.items()]
    start = onnx.helper.make_tensor_value_info("x", FLOAT, list(shape))
    arrays = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    graph = onnx.helper.make_graph(nodes, "net", [start], made, arrays)
    onnx.save(onnx.helper.make_model(graph, opset_imports=domains, ir_version=8), path)
