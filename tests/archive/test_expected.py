"""A table's graph is compared with what its library answers; where a tree's branches are proven by nobody, the build says so.

The library here is a tree behind a scaler in plain numpy, as scikit-learn computes it: the scaler in float64, the tree in
float32. tests/thirty has scikit-learn itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.archive.library.expected_answers import PAIRS, Table, edges_of, write_expected
from slotwise.errors import SlotwiseError

pytest.importorskip("onnxruntime")
graphs = pytest.importorskip("tests.archive.graphs")
from tests.archive.graphs import FLOAT, node  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home")

onnx = graphs.onnx
DOUBLE = onnx.TensorProto.DOUBLE
MEAN, SCALE, THRESHOLD = 0.3333333, 1.7, 0.1
ROWS = np.random.default_rng(0).normal(size=(60, 2))


def library(rows: Any) -> Any:
    """[b, 2] to values [b]: 10 where the scaled first number is over the threshold, else 20."""
    scaled = ((rows - MEAN) / SCALE).astype(np.float32)
    return np.where(scaled[:, 0] <= np.float32(THRESHOLD), 20.0, 10.0)


def tree(source: str) -> Any:
    """The tree of `library` as a node."""
    return node(
        "TreeEnsembleRegressor", source, "y", domain="ai.onnx.ml", n_targets=1, post_transform="NONE",
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_values=[THRESHOLD, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[0, 0, 0], nodes_hitrates=[1.0, 1.0, 1.0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[20.0, 10.0],
    )  # fmt: skip


def made(folder: Path, nodes: list[Any], weights: dict[str, Any], kind: int = FLOAT, maker: str = "skl2onnx") -> None:
    info = onnx.helper.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    body = onnx.helper.make_graph(nodes, "net", [info("x", kind, ["b", 2])], [info("y", FLOAT, ["b", 1])], arrays)
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(body, opset_imports=domains, ir_version=8, producer_name=maker)
    onnx.save(model, folder / "net.onnx")


def single(folder: Path, **options: Any) -> None:
    """In float32, as skl2onnx writes it from float inputs."""
    scaler = node("Scaler", "x", "s", domain="ai.onnx.ml", offset=[MEAN, MEAN], scale=[1 / SCALE, 1 / SCALE])
    made(folder, [scaler, tree("s")], {}, **options)


def double(folder: Path) -> None:
    """In float64, with a cast to float32 in front of the tree."""
    nodes = [node("Sub", "x mean", "c"), node("Div", "c scale", "d"), node("Cast", "d", "s", to=FLOAT), tree("s")]
    made(folder, nodes, {"mean": np.array(MEAN), "scale": np.array(SCALE)}, kind=DOUBLE)


def described(folder: Path, more: str = "") -> Path:
    text = f'name = "net"\nhandler = "tabular"\noutput = "regression"\n{more}\n[input.columns]\na = "float"\nb = "float"\n'
    (folder / "model.toml").write_text(f'{text}[weights]\nonnx = "net.onnx"\n', "utf-8")
    return folder


def built(folder: Path, more: str = 'expected = "expected.json"') -> dict[str, Any]:
    """The report of its build."""
    archive = build(described(folder, more), folder / "store", prove=lambda *_: None)
    return dict(json.loads(archive.with_suffix(".report.json").read_text("utf-8"))["measured"])


def test_edges_are_neighbours_that_the_library_answers_otherwise() -> None:
    rows = edges_of(Table(ROWS), library).astype(np.float64)
    low, high = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    answered = library(low) != library(high)
    assert answered.sum() > PAIRS // 10
    apart = np.abs(low - high)[answered, 0] / np.spacing(np.abs(low[answered, 0]))
    assert apart.max() <= 2


def test_a_scaler_in_float32_in_front_of_a_tree_is_refused_and_one_in_float64_is_built(tmp_path: Path) -> None:
    single(tmp_path)
    write_expected(tmp_path, library, ROWS)
    with pytest.raises(SlotwiseError) as raised:
        built(tmp_path)
    assert raised.value.message.startswith("net.onnx answers otherwise than expected.json: ")
    assert "slotwise.archive.library.scikit_learn.export" in raised.value.hint
    double(tmp_path)
    report = built(tmp_path)
    assert report["expected"]["file"] == "expected.json"
    assert report["expected"]["rows"] > len(ROWS)


def test_rows_alone_may_not_show_it(tmp_path: Path) -> None:
    """That is what edges are for: none of these rows lies next to the threshold."""
    single(tmp_path)
    write_expected(tmp_path, library, ROWS, edges=False)
    assert built(tmp_path)["expected"]["rows"] == len(ROWS)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (single, "a tree compares numbers that the graph computes (Scaler)"),
        (lambda folder: made(folder, [tree("x")], {}, maker="OnnxMLTools"), "the graph's maker may have rounded"),
        (lambda folder: made(folder, [tree("x")], {}, kind=DOUBLE), "a tree compares the float64 of x"),
        (lambda folder: made(folder, [tree("x")], {}), ""),
    ],
)
def test_what_nobody_has_proven_is_said(tmp_path: Path, make: Any, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    built(tmp_path, "")
    printed = " ".join(capfd.readouterr().err.split())
    assert (said in printed) if said else ("threshold" not in printed)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"rows": []}', "holds no rows and answers"),
        ('{"rows": [[1, 2]], "answers": [[1, 2]]}', "1 numbers a row, not 2"),
        ('{"rows": [[1, 2], [3]], "answers": [1, 2]}', "row 2: a row has 2 columns, this one has 1"),
        ('{"rows": [{"a": 1, "b": 2}], "answers": [NaN]}', "holds no rows and answers"),
        ('{"rows": [{"a": 1, "b": 2}, 7], "answers": [10, 10]}', "row 2"),
        ('{"rows": [[1, 2]], "answers": [20]}', "1 of 1 rows; row 1 gives 10, not 20"),
        ("[", "holds no rows and answers"),
    ],
)
def test_a_file_that_expects_something_else(tmp_path: Path, content: str, said: str) -> None:
    double(tmp_path)
    (tmp_path / "expected.json").write_text(content)
    with pytest.raises(SlotwiseError) as raised:
        built(tmp_path)
    assert said in raised.value.message


def test_a_missing_file_and_another_handler_are_named(tmp_path: Path) -> None:
    double(tmp_path)
    with pytest.raises(SlotwiseError, match=r"expected\.json is named in model.toml but is not in"):
        built(tmp_path)
    (tmp_path / "model.toml").write_text('name = "net"\nhandler = "tensors"\nexpected = "expected.json"\n')
    with pytest.raises(SlotwiseError, match="only a table"):
        build(tmp_path, tmp_path / "store")
