"""A table's graph is compared with its columns when it is built, run, and refused with the line that model.toml lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from tests.worker.serving import Served

graphs = pytest.importorskip("tests.archive.graphs")
pytest.importorskip("onnxruntime")
from tests.archive.graphs import FLOAT, INT64, node  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home")

onnx = graphs.onnx
TEXT, DOUBLE, INT32 = onnx.TensorProto.STRING, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32
MIXED = '[input.columns]\nage = "int"\nincome = "float?"\ncity = ["Oslo", "Rome"]\n'
WEIGHTS = np.array([[1.0], [10.0]], np.float32)


def mixed(path: Path, batch: int | str = "b") -> None:
    """One input a column, as skl2onnx writes a pipeline: age + 10 * income (0 where it is missing) + 100 in Rome."""
    nodes = [
        node("Cast", "age", "years", to=FLOAT),
        node("Imputer", "income", "earned", domain="ai.onnx.ml", imputed_value_floats=[0.0], replaced_value_float=float("nan")),
        node("Concat", "years earned", "numbers", axis=1),
        node("MatMul", "numbers w", "sum"),
        node("OneHotEncoder", "city", "where", domain="ai.onnx.ml", cats_strings=["Oslo", "Rome"], zeros=0),
        node("Reshape", "where two", "towns"),
        node("MatMul", "towns far", "more"),
        node("Add", "sum more", "variable"),
    ]
    weights = {"w": WEIGHTS, "two": np.array([-1, 2]), "far": np.array([[0.0], [100.0]], np.float32)}
    write(path, nodes, {"age": (INT64, 1), "income": (FLOAT, 1), "city": (TEXT, 1)}, {"variable": 1}, weights, batch)


def write(
    path: Path, nodes: Any, inputs: dict[str, tuple[int, int]], outputs: dict[str, int], weights: Any, batch: int | str = "b"
) -> None:
    info = onnx.helper.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    given = [info(name, kind, [batch, width]) for name, (kind, width) in inputs.items()]
    made = [info(name, FLOAT, [batch, width]) for name, width in outputs.items()]
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", given, made, arrays), opset_imports=domains,
                                     ir_version=8), path)  # fmt: skip


def products(path: Path, columns: int = 2, kind: int = FLOAT) -> None:
    """One input of two columns, x, and as many outputs."""
    nodes = [node("Cast", "x", "f", to=FLOAT), node("MatMul", "f w", "y")]
    write(
        path,
        nodes,
        {"x": (kind, 2)},
        {"y": columns},
        {"w": np.ones((2, 1), np.float32) * np.arange(1, columns + 1, dtype=np.float32)},
    )


def described(folder: Path, columns: str, more: str = "") -> Path:
    (folder / "model.toml").write_text(
        f'name = "net"\nhandler = "tabular"\n{more}\n{columns}\n[weights]\nonnx = "net.onnx"\n', "utf-8"
    )
    return folder


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(SlotwiseError) as raised:
        build(folder, folder / "store")
    return raised.value.message, raised.value.hint


def test_one_input_a_column_with_texts_and_what_is_missing(tmp_path: Path) -> None:
    mixed(tmp_path / "net.onnx")
    served = Served.of(build(described(tmp_path, MIXED, 'output = "regression"'), tmp_path / "store"), {"engine": "openvino"})
    rows = [{"city": "Rome", "age": 40, "income": 2.5}, {"age": 7, "city": "Oslo"}, {"age": 7, "city": "Paris"}]
    first, second, third, both = served.ask([*(json.dumps(row).encode() for row in rows), json.dumps(rows[:2]).encode()])
    assert (first.value, second.value, third.code) == ({"value": 165.0}, {"value": 7.0}, 422)
    assert both.value == [{"value": 165.0}, {"value": 7.0}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (MIXED.replace("age", "years"), "the graph has no input 'years' for the column 'years': it has age (tensor(int64))"),
        (MIXED.replace('age = "int"\n', ""), "the graph's input 'age' takes 1 columns, but model.toml has none for it"),
        (MIXED.replace('"int"', '"float"'), "the column 'age' is float, but the graph's input 'age' is tensor(int64)"),
        (MIXED.replace('"int"', '"int?"'), "the column 'age' may be missing, but the graph's input 'age' is tensor(int64)"),
        (MIXED.replace('"float?"', '"text"'), "the column 'income' is text, but the graph's input 'income' is tensor(float)"),
        (
            MIXED.replace('["Oslo", "Rome"]', '"int"'),
            "the column 'city' is int, but the graph's input 'city' is tensor(string)",
        ),
    ],
)
def test_columns_that_are_not_the_graphs_are_refused(tmp_path: Path, columns: str, said: str) -> None:
    mixed(tmp_path / "net.onnx")
    message, line = refusal(described(tmp_path, columns, 'output = "regression"'))
    assert said in message
    assert line.startswith("correct [input.columns]")


def test_what_the_numbers_are_has_to_be_said(tmp_path: Path) -> None:
    two = '[input.columns]\na = "float"\nb = "int"\n'
    products(tmp_path / "net.onnx")
    message, line = refusal(described(tmp_path, two))
    assert "and nobody says what they are" in message
    assert line == 'write in model.toml: output = "regression" (or "logits")'
    assert "no probabilities" in refusal(described(tmp_path, two, 'output = "probabilities"'))[0]
    assert refusal(described(tmp_path, two, 'output = "logits"\nlabels = ["a", "b", "c"]'))[0].endswith("there are 3 labels")
    products(tmp_path / "net.onnx", 1)
    assert refusal(described(tmp_path, two))[1].startswith('write in model.toml: output = "regression"')
    products(tmp_path / "net.onnx", 3)
    served = Served.of(build(described(tmp_path, two, 'output = "regression"'), tmp_path / "store"), {})
    assert served.ask([b'{"a": 1, "b": 2}'])[0].value == {"values": [3.0, 6.0, 9.0]}


def test_several_columns_of_one_of_several_inputs(tmp_path: Path) -> None:
    nodes = [node("Concat", "left right", "x", axis=1), node("MatMul", "x w", "y")]
    write(tmp_path / "net.onnx", nodes, {"left": (FLOAT, 2), "right": (FLOAT, 1)}, {"y": 1},
          {"w": np.array([[1.0], [10.0], [100.0]], np.float32)})  # fmt: skip
    columns = '[input.columns]\nright = "float"\na = {input = "left"}\nb = {kind = "int", input = "left"}\n'
    served = Served.of(build(described(tmp_path, columns, 'output = "regression"'), tmp_path / "store"), {})
    assert served.ask([b'{"a": 1, "b": 2, "right": 3}'])[0].value == {"value": 321.0}


def test_whole_numbers_that_the_graph_cannot_hold_are_refused(tmp_path: Path) -> None:
    columns = '[input.columns]\na = "int"\nb = "int"\n'
    body = [b'{"a": 16777217, "b": 0}']
    for kind, code in ((FLOAT, 422), (DOUBLE, 200), (INT64, 200)):
        products(tmp_path / "net.onnx", 1, kind)
        served = Served.of(build(described(tmp_path, columns, 'output = "regression"'), tmp_path / "store"), {})
        assert served.ask(body)[0].code == code
    products(tmp_path / "net.onnx", 1, INT32)
    served = Served.of(build(described(tmp_path, columns, 'output = "regression"'), tmp_path / "store"), {})
    (most, more) = served.ask([b'{"a": 1000, "b": 0}', b'{"a": 4294967297, "b": 0}'])
    assert (most.value, more.code) == ({"value": 1000.0}, 422)  # it would be the 1 that is left of it in 32 bits


def test_what_cannot_be_built(tmp_path: Path) -> None:
    mixed(tmp_path / "net.onnx", batch=1)
    said = 'output = "regression"'
    assert "has a batch that is fixed at 1" in refusal(described(tmp_path, MIXED, said))[0]
    assert refusal(described(tmp_path, "", said))[0] == "net names no columns"
    mixed(tmp_path / "net.onnx")
    (tmp_path / "row.json").write_text('{"age": 1.5, "city": "Oslo"}')
    message = refusal(described(tmp_path, MIXED, f'{said}\nexamples = ["row.json"]'))[0]
    assert message == "row.json: column 'age' takes a whole number, not 1.5"
    free = MIXED.replace('["Oslo", "Rome"]', '"text"')
    message, line = refusal(described(tmp_path, free, said))
    assert message.startswith("net does not run on made-up rows")
    assert line == 'name rows that it answers in model.toml: examples = ["row.json"]'
    assert "names no model" in refusal_of_text(tmp_path, f'name = "net"\nhandler = "tabular"\n{MIXED}')


def refusal_of_text(folder: Path, text: str) -> str:
    (folder / "model.toml").write_text(text)
    return refusal(folder)[0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ('age = "number"', "input.columns"),
        ("age = 7", 'age must be "float", "int", "bool", "text" or a list of texts'),
        ('city = "text?"', "a text cannot be missing"),
        ('age = {kind = "int", values = ["a"]}', "only a column of texts lists its values"),
        ('age = {typ = "int"}', "unknown key"),
    ],
)
def test_a_column_that_nobody_can_read_is_named(tmp_path: Path, column: str, said: str) -> None:
    assert said in refusal(described(tmp_path, f"[input.columns]\n{column}\n"))[0]
