"""Write a model of a table, or of named tensors, that builds and serves as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TABULAR_TOML = """\
# Build:  slotwise build {path}
# Serve:  slotwise serve {path}
# Try:    slotwise predict {name} {path}/row.json
name = "{name}"
version = "1.0"
handler = "tabular"              # rows of JSON or CSV in, a label and probabilities out, or a value
description = "Whether somebody buys an umbrella"
output = "probabilities"         # or "logits", "regression"
labels = ["no", "yes"]
examples = ["row.json", "rows.csv"]  # bodies that the model answers; `slotwise check` replays them

[input.columns]                  # in the order of training
rain_mm = "float"
income = "float?"                # may be missing; others are "int", "bool", "text"
season = ["spring", "summer", "autumn", "winter"]  # one of these texts

[weights]
onnx = "model.onnx"              # written by skl2onnx or onnxmltools; or the own file of lightgbm, xgboost or skops
"""
SKLEARN_TOML = """\
# Build:  slotwise build {path}  (runs make.py)
# Serve:  slotwise serve {path}
# Try:    slotwise predict {name} {path}/row.json
name = "{name}"
version = "1.0"
handler = "tabular"              # rows of JSON or CSV in, a label and probabilities out, or a value
description = "Whether somebody buys an umbrella: a pipeline of scikit-learn, answered by scikit-learn"
examples = ["row.json", "rows.csv"]  # bodies that the model answers; `slotwise check` replays them

[input.columns]                  # by the names of training, in their order
rain_mm = "float"
income = "float?"                # may be missing; others are "int", "bool", "text"
season = ["spring", "summer", "autumn", "winter"]  # one of these texts

[weights]
skops = "model.skops"            # skops.io.dump(model, "model.skops"); no pickle
"""
SKLEARN_MAKE = '''\
"""Train a pipeline of scikit-learn and save it with skops. Or leave this file out and put your own model.skops here."""

import numpy as np
import pandas
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler


def make(out, weights, progress):  # `slotwise build` calls it once; what it returns stands in the report
    table, bought = sales()
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["rain_mm", "income"]), (OneHotEncoder(), ["season"]))
    model = make_pipeline(columns, LogisticRegression()).fit(table[:800], bought[:800])
    skops.io.dump(model, out / "model.skops")
    return {"accuracy": float(model.score(table[800:], bought[800:]))}


def sales():
    """1,000 made-up rows, and whether an umbrella was bought."""
    draw = np.random.default_rng(0)
    rain, income = draw.gamma(1.5, 4, 1000), draw.normal(50, 20, 1000)
    season = draw.choice(["spring", "summer", "autumn", "winter"], 1000)
    bought = rain + 3 * (season == "autumn") + draw.normal(0, 2, 1000) > 8
    table = pandas.DataFrame({"rain_mm": rain, "income": np.where(draw.random(1000) < 0.1, np.nan, income), "season": season})
    return table, np.where(bought, "yes", "no")
'''
TENSORS_TOML = """\
# Build:  slotwise build {path}
# Serve:  slotwise serve {path}
# Try:    slotwise predict {name} {path}/pair.json
name = "{name}"
version = "1.0"
handler = "tensors"              # all inputs of an ONNX graph by their names, and all its outputs by theirs
description = "How alike two vectors are, and their sum"
examples = ["pair.json", "pairs.json"]  # bodies that the model answers; `slotwise check` replays them

[weights]
onnx = "model.onnx"              # with a dynamic batch axis; runs on onnxruntime and OpenVINO
# [inputs]                       # only where the graph leaves a side free besides the batch
# first = [4]
"""
ROWS: list[dict[str, Any]] = [
    {"rain_mm": 14.5, "income": 52.0, "season": "autumn"}, {"rain_mm": 0.2, "income": None, "season": "summer"},
]  # fmt: skip
PAIRS = [{"first": [1.0, 0.0, 2.0, 0.5], "second": [0.5, 0.5, 1.0, 0.0]}, {"first": [0.0] * 4, "second": [1.0] * 4}]
WEIGHTS = [0.4, 0.0, 0.0, 0.0, 1.2, 0.0]  # of the rain, the income and each season
OPSET, IR_VERSION = 17, 8  # what onnxruntime 1.20 knows, too


def write_tabular(folder: Path) -> None:
    """A graph with an input for each column."""
    _write(folder, TABULAR_TOML)
    _write_rows(folder)
    from onnx import TensorProto, helper  # noqa: PLC0415  slow to import

    seasons = ["spring", "summer", "autumn", "winter"]
    nodes = [
        helper.make_node(
            "Imputer", ["income"], ["known"], domain="ai.onnx.ml", imputed_value_floats=[50.0], replaced_value_float=np.nan,
        ),
        helper.make_node("OneHotEncoder", ["season"], ["each"], domain="ai.onnx.ml", cats_strings=seasons, zeros=1),
        helper.make_node("Flatten", ["each"], ["seasons"]),
        helper.make_node("Concat", ["rain_mm", "known", "seasons"], ["row"], axis=1),
        helper.make_node(
            "LinearClassifier", ["row"], ["label", "probabilities"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"],
            coefficients=[*(-weight for weight in WEIGHTS), *WEIGHTS], intercepts=[3.2, -3.2], post_transform="SOFTMAX",
        ),
    ]  # fmt: skip
    kinds = {"rain_mm": TensorProto.FLOAT, "income": TensorProto.FLOAT, "season": TensorProto.STRING}
    inputs = [helper.make_tensor_value_info(name, kind, ["b", 1]) for name, kind in kinds.items()]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["b"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["b", 2]),
    ]
    _save(folder, helper.make_graph(nodes, "umbrellas", inputs, outputs))


def write_sklearn(folder: Path) -> None:
    """A make.py that trains a pipeline and saves it with skops."""
    _write(folder, SKLEARN_TOML)
    _write_rows(folder)
    (folder / "make.py").write_text(SKLEARN_MAKE, "utf-8")


def write_tensors(folder: Path) -> None:
    """A graph of two inputs and two outputs."""
    _write(folder, TENSORS_TOML)
    (folder / "pair.json").write_text(json.dumps(PAIRS[0]) + "\n", "utf-8")
    (folder / "pairs.json").write_text(json.dumps(PAIRS) + "\n", "utf-8")
    from onnx import TensorProto, helper  # noqa: PLC0415  slow to import

    nodes = [
        helper.make_node("Mul", ["first", "second"], ["products"]),
        helper.make_node("ReduceSum", ["products", "axis"], ["alike"], keepdims=1),
        helper.make_node("Add", ["first", "second"], ["sum"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 4]) for name in ("first", "second")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", size]) for name, size in (("alike", 1), ("sum", 4))]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    _save(folder, helper.make_graph(nodes, "pairs", inputs, outputs, [axis]))


def _write(folder: Path, toml: str) -> None:
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(toml.format(name=folder.name, path=folder), "utf-8")


def _write_rows(folder: Path) -> None:
    (folder / "row.json").write_text(json.dumps(ROWS[0]) + "\n", "utf-8")
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in ROWS]
    (folder / "rows.csv").write_text("\n".join([",".join(ROWS[0]), *lines]) + "\n", "utf-8")


def _save(folder: Path, graph: Any) -> None:
    import onnx  # noqa: PLC0415  slow to import

    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), folder / "model.onnx")
