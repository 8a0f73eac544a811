"""Train a logistic regression on scikit-learn's irises; write it as skl2onnx would: label and probabilities."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec

if TYPE_CHECKING:
    from rich.progress import Progress

LEAST_ACCURACY = 0.9
FAR = 1e-5  # the graph computes in float32, scikit-learn in float64


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write iris.onnx; returns the accuracy on flowers that training never saw, and how far the graph is from scikit-learn."""
    if weights not in (None, "none"):
        raise SlotwiseError("the iris model trains its own weights", "leave out --weights")
    rows, kinds = flowers()
    train, test = train_test_split(np.arange(len(rows)), test_size=0.3, random_state=0, stratify=kinds)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(rows[train], kinds[train])
    graph = exported(model)
    (out / "iris.onnx").write_bytes(graph.SerializeToString(deterministic=True))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    labels, likely = session.run(["label", "probabilities"], {"x": rows.astype(np.float32)})
    apart = float(np.abs(likely - model.predict_proba(rows)).max())
    accuracy = float((labels == kinds)[test].mean())
    if accuracy < LEAST_ACCURACY or apart > FAR:
        raise SlotwiseError(f"the iris model reached {accuracy:.2%}, {apart:.1e} from scikit-learn", "see its make.py")
    return {"accuracy": accuracy, "held_out": len(test), "trained_on": len(train), "apart_from_scikit_learn": apart}


def flowers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """150 flowers: float64 [n, 4] in centimetres, and the name of each one's kind."""
    data = load_iris()
    return data.data, data.target_names[data.target].astype(str)


def exported(model: Any) -> onnx.ModelProto:
    """The pipeline as a graph: x [b, 4] to label [b] and probabilities [b, 3]."""
    scaler, regression = model[0], model[-1]
    nodes = [
        helper.make_node(
            "Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=scaler.mean_.tolist(), scale=(1 / scaler.scale_).tolist()
        ),
        helper.make_node(
            "LinearClassifier",
            ["scaled"],
            ["label", "probabilities"],
            domain="ai.onnx.ml",
            classlabels_strings=regression.classes_.tolist(),
            coefficients=regression.coef_.ravel().tolist(),
            intercepts=regression.intercept_.tolist(),
            multi_class=1,
            post_transform="SOFTMAX",
        ),
    ]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["b"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["b", 3]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph(nodes, "iris", inputs, outputs), opset_imports=domains, ir_version=8)


def write_examples(folder: Path) -> None:
    """One flower of each kind as JSON, and all three as rows, as columns and as CSV: what the committed examples are."""
    names = [column.name for column in load_spec(Path(__file__).parent).input.columns]
    rows, kinds = flowers()
    chosen = {kind: dict(zip(names, rows[list(kinds).index(kind) + 7].tolist(), strict=True)) for kind in dict.fromkeys(kinds)}
    folder.mkdir(exist_ok=True)
    for kind, row in chosen.items():
        (folder / f"{kind}.json").write_text(json.dumps(row) + "\n")
    (folder / "three.json").write_text(json.dumps(list(chosen.values())) + "\n")
    (folder / "columns.json").write_text(json.dumps({name: [row[name] for row in chosen.values()] for name in names}) + "\n")
    with (folder / "three.csv").open("w", newline="") as target:
        writer = csv.DictWriter(target, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(chosen.values())


if __name__ == "__main__":
    write_examples(Path(__file__).parent / "examples")
