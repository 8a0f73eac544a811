"""What a network gives is looked at when it is built: nothing is guessed, and the line that model.toml lacks is named."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.backends.catalog import model_card
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from tests.support.archives import unproven
from tests.worker.serving import Served

graphs = pytest.importorskip("tests.archive.graphs")
pytest.importorskip("onnxruntime")
from tests.archive.graphs import FLOAT, INT64, node, save  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home")

WEIGHTS = np.random.default_rng(4).standard_normal((4, 3)).astype(np.float32)
ROW = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
LOGITS = ROW @ WEIGHTS
LIKELY = np.exp(LOGITS) / np.exp(LOGITS).sum()
SCIKIT = {
    "classlabels_ints": [0, 1, 2],
    "coefficients": WEIGHTS.T.ravel().tolist(),
    "intercepts": [0.0] * 3,
    "multi_class": 1,
    "post_transform": "SOFTMAX",
}


def scikit(path: Path) -> None:
    """As skl2onnx writes a LogisticRegression: the label first, then the probabilities."""
    nodes = [node("LinearClassifier", "x", "label probabilities", domain="ai.onnx.ml", **SCIKIT)]
    save(path, nodes, {"label": (INT64, ["b"]), "probabilities": (FLOAT, ["b", 3])}, {}, ["b", 4])


def own_softmax(path: Path) -> None:
    """A softmax that is no Softmax node."""
    nodes = [node("MatMul", "x w", "s"), node("Exp", "s", "e"), node("ReduceSum", "e axis", "sum"), node("Div", "e sum", "y")]
    save(path, nodes, {"y": (FLOAT, ["b", 3])}, {"w": WEIGHTS, "axis": np.array([1])}, ["b", 4])


def sigmoids(path: Path, columns: int = 3) -> None:
    nodes = [node("MatMul", "x w", "s"), node("Sigmoid", "s", "y")]
    save(path, nodes, {"y": (FLOAT, ["b", columns])}, {"w": WEIGHTS[:, :columns]}, ["b", 4])


def products(path: Path, columns: int = 3) -> None:
    nodes = [node("MatMul", "x w", "y")]
    save(path, nodes, {"y": (FLOAT, ["b", columns])}, {"w": WEIGHTS[:, :columns]}, ["b", 4])


def described(folder: Path, output: str = "", labels: tuple[str, ...] = ("a", "b", "c")) -> Path:
    text = f'name = "net"\nhandler = "tensor_classifier"\nlabels = {json.dumps(labels)}\n' + (
        f'output = "{output}"\n' * bool(output)
    )
    (folder / "model.toml").write_text(f'{text}[input]\nshape = [4]\n[weights]\nonnx = "net.onnx"\n')
    return folder


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(SlotwiseError) as raised:
        build(folder, folder / "store", prove=unproven)
    return raised.value.message, raised.value.hint


def answer(folder: Path, body: bytes = ROW.tobytes(), headers: dict[str, str] | None = None) -> Any:
    served = Served.of(build(folder, folder / "store", prove=unproven), {"engine": "onnxruntime"})
    replied = served.ask([body], [headers or {}])[0]
    assert replied.code == 200, replied.body
    return replied.value


def test_a_label_and_its_probabilities_are_told_apart(tmp_path: Path) -> None:
    scikit(tmp_path / "net.onnx")
    message, line = refusal(described(tmp_path))
    assert message == (
        "net.onnx has the outputs label (int64 [b]), probabilities (float32 [b, 3]), and nobody says which is served"
    )
    assert line == 'write in model.toml: output = "probabilities"'
    found = answer(described(tmp_path, "probabilities"))
    assert found["label"] == "c"[0] if LIKELY.argmax() == 2 else "ab"[LIKELY.argmax()]
    assert [found["probabilities"][name] for name in "abc"] == pytest.approx(LIKELY, abs=2e-6)
    message, _ = refusal(described(tmp_path, "label"))
    assert message == "net.onnx: its output label is int64 [b]: no scores"
    message, _ = refusal(described(tmp_path, "scores"))
    assert message.startswith("net.onnx has no output scores: it has label")


def test_a_list_of_dicts_is_no_output(tmp_path: Path) -> None:
    nodes = [
        node("LinearClassifier", "x", "label scores", domain="ai.onnx.ml", **SCIKIT),
        node("ZipMap", "scores", "probabilities", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    save(tmp_path / "net.onnx", nodes, {"label": (INT64, ["b"])}, {}, ["b", 4])
    graph = graphs.onnx.load(tmp_path / "net.onnx")
    each = graphs.onnx.helper.make_map_type_proto(INT64, graphs.onnx.helper.make_tensor_type_proto(FLOAT, None))
    listed = graphs.onnx.helper.make_sequence_type_proto(each)
    graph.graph.output.append(graphs.onnx.helper.make_value_info("probabilities", listed))
    graphs.onnx.save(graph, tmp_path / "net.onnx")
    message, line = refusal(described(tmp_path, "probabilities"))
    assert message == "net.onnx: its output probabilities is sequence: no scores"
    assert line == "export it with a tensor in its place (skl2onnx: options={'zipmap': False})"


def test_rows_that_are_probabilities_already_get_no_second_softmax(tmp_path: Path) -> None:
    own_softmax(tmp_path / "net.onnx")
    message, line = refusal(described(tmp_path))
    assert message == "net.onnx gives rows that sum to one already: a softmax would change them"
    assert line.startswith('write in model.toml: output = "probabilities"')
    found = answer(described(tmp_path, "probabilities"))
    assert [found["probabilities"][name] for name in "abc"] == pytest.approx(LIKELY, abs=2e-6)


def test_scores_that_stay_between_0_and_1_are_probabilities_of_one_label_each(tmp_path: Path) -> None:
    sigmoids(tmp_path / "net.onnx")
    message, _ = refusal(described(tmp_path))
    assert message == "net.onnx gives rows that lie between 0 and 1: a softmax would change them"
    found = answer(described(tmp_path, "probabilities"))
    assert [found["probabilities"][name] for name in "abc"] == pytest.approx(1 / (1 + np.exp(-LOGITS)), abs=2e-6)


def test_one_number_a_row_is_a_regression_or_the_second_of_two_labels(tmp_path: Path) -> None:
    products(tmp_path / "net.onnx", 1)
    message, line = refusal(described(tmp_path, labels=()))
    assert "net.onnx gives one number a row (numbers from " in message
    assert line.startswith('write in model.toml: output = "regression"')
    assert answer(described(tmp_path, "regression", ())) == {"value": pytest.approx(LOGITS[0], abs=1e-6)}
    second = 1 / (1 + np.exp(-LOGITS[0]))
    found = answer(described(tmp_path, "logits", ("no", "yes")))
    assert found["probabilities"] == {"no": pytest.approx(1 - second, abs=2e-6), "yes": pytest.approx(second, abs=2e-6)}
    message, _ = refusal(described(tmp_path, "probabilities", ("no", "yes")))
    assert "which are no probabilities" in message
    sigmoids(tmp_path / "net.onnx", 1)
    found = answer(described(tmp_path, "probabilities", ("no", "yes")))
    assert found["probabilities"]["yes"] == pytest.approx(second, abs=2e-6)


def test_several_values_a_row_are_a_regression_of_each_label(tmp_path: Path) -> None:
    products(tmp_path / "net.onnx")
    expected = dict(zip("abc", (pytest.approx(value, abs=1e-5) for value in LOGITS), strict=True))
    assert answer(described(tmp_path, "y:regression")) == {"values": expected}


def test_logits_need_no_line(tmp_path: Path) -> None:
    products(tmp_path / "net.onnx")
    found = answer(described(tmp_path))
    assert [found["probabilities"][name] for name in "abc"] == pytest.approx(LIKELY, abs=2e-6)
    message, line = refusal(described(tmp_path, "probabilities"))
    assert "which are no probabilities" in message
    assert line == 'write in model.toml: output = "logits", "regression" or "embedding"'


def test_an_embedding_is_answered_as_it_is(tmp_path: Path) -> None:
    products(tmp_path / "net.onnx")
    found = answer(described(tmp_path, "embedding", ()))
    assert found == {"embedding": [pytest.approx(value, abs=1e-5) for value in LOGITS]}
    assert answer(described(tmp_path, "y:embedding", ())) == found
    message, line = refusal(described(tmp_path, "embedding"))
    assert message == "net answers an embedding, which has no use for labels"
    assert line.startswith("write no labels in model.toml")
    products(tmp_path / "net.onnx", 1)
    assert answer(described(tmp_path, "embedding", ())) == {"embedding": [pytest.approx(LOGITS[0], abs=1e-5)]}


@pytest.mark.parametrize(("output", "labels", "columns"), [("", "abc", 3), ("y:logits", "ab", 1), ("y:regression", "", 3)])
def test_who_asks_for_every_score_gets_the_graphs_own_numbers_too(
    tmp_path: Path, output: str, labels: str, columns: int
) -> None:
    folder = described(tmp_path, output, tuple(labels))
    products(folder / "net.onnx", columns)
    full = answer(folder, headers={"x-scores": "all"})
    assert full["answer"] == answer(folder)
    assert full.get("outputs", full["scores"]) == pytest.approx(LOGITS[:columns].tolist(), abs=1e-5)
    if not output:
        assert full["scores"] == pytest.approx(LIKELY.tolist(), abs=1e-5)
    card = model_card(folder / "store" / "net.mar")
    assert (card.scores, card.own_output) == (len(labels) or -1, "y")


def test_a_handler_of_ones_own_says_nothing_of_scores(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from slotwise.worker import BatchHandler\nhandle = BatchHandler.entry_point()\n")
    (tmp_path / "model.toml").write_text(
        'name = "own"\nhandler = "own.py"\n[input]\nshape = [4]\n[weights]\nonnx = "net.onnx"\n'
    )
    products(tmp_path / "net.onnx")
    card = model_card(build(tmp_path, tmp_path / "store", prove=unproven))
    assert (card.scores, card.own_output) == (0, "")


def test_the_graphs_own_classes_are_the_labels_and_none_may_stand_elsewhere(tmp_path: Path) -> None:
    named = {
        **{key: value for key, value in SCIKIT.items() if key != "classlabels_ints"},
        "classlabels_strings": ["a", "b", "c"],
    }
    nodes = [node("LinearClassifier", "x", "label probabilities", domain="ai.onnx.ml", **named)]
    text = graphs.onnx.TensorProto.STRING
    save(tmp_path / "net.onnx", nodes, {"label": (text, ["b"]), "probabilities": (FLOAT, ["b", 3])}, {}, ["b", 4])
    expected = dict(zip("abc", (pytest.approx(value, abs=2e-6) for value in LIKELY), strict=True))
    assert answer(described(tmp_path, "probabilities", ()))["probabilities"] == expected
    assert answer(described(tmp_path, "probabilities", ("first", "second", "third")))["label"] in ("first", "second", "third")
    message, line = refusal(described(tmp_path, "probabilities", ("b", "a", "c")))
    assert message == "net.onnx gives its scores in the order a, b, c, but model.toml has b, a, c"
    assert line == 'write in model.toml: labels = ["a", "b", "c"], or no labels'


@pytest.mark.parametrize(
    ("labels", "classes", "fits"),
    [
        (["positive", "negative"], ["NEGATIVE", "POSITIVE"], False),
        (["negative", "positive"], ["NEGATIVE", "POSITIVE"], True),
        (["bad", "good"], ["NEGATIVE", "POSITIVE"], True),
        (["a", "A"], ["A", "a"], False),
        (["A", "a"], ["A", "a"], True),
        (["b", "c", "A"], ["a", "b"], False),
    ],
)
def test_a_name_in_other_letters_is_at_its_place_too(labels: list[str], classes: list[str], fits: bool) -> None:
    from slotwise.archive.network.graph_classes import check_order

    spec = ModelSpec.model_validate({"name": "n", "handler": "text_classifier", "labels": labels})
    if fits:
        check_order(spec, "config.json", classes)
    else:
        with pytest.raises(SlotwiseError, match="gives its scores in the order"):
            check_order(spec, "config.json", classes)


def test_numbers_that_are_classes_are_the_labels_too(tmp_path: Path) -> None:
    numbered = {**SCIKIT, "classlabels_ints": [3, 7, 9]}
    nodes = [node("LinearClassifier", "x", "label probabilities", domain="ai.onnx.ml", **numbered)]
    save(tmp_path / "net.onnx", nodes, {"label": (INT64, ["b"]), "probabilities": (FLOAT, ["b", 3])}, {}, ["b", 4])
    assert answer(described(tmp_path, "probabilities", ()))["probabilities"].keys() == {"3", "7", "9"}


def test_classes_that_are_looked_up_are_believed_where_the_best_score_is_theirs(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "s"),
        node("Softmax", "s", "probabilities", axis=1),
        node("ArgMax", "probabilities", "at", axis=1, keepdims=0),
        node("ArrayFeatureExtractor", "classes at", "found", domain="ai.onnx.ml"),
        node("Reshape", "found flat", "label"),
    ]
    outputs = {"label": (INT64, ["b"]), "probabilities": (FLOAT, ["b", 3])}
    flat = {"w": WEIGHTS, "classes": np.array([30, 10, 20]), "flat": np.array([-1])}
    save(tmp_path / "net.onnx", nodes, outputs, flat, ["b", 4])
    assert answer(described(tmp_path, "probabilities", ()))["label"] == str([30, 10, 20][LIKELY.argmax()])
    save(tmp_path / "net.onnx", [*nodes[:2], node("ArgMin", "probabilities", "at", axis=1, keepdims=0), *nodes[3:]],
         outputs, flat, ["b", 4])  # fmt: skip
    assert answer(described(tmp_path, "probabilities", ()))["label"] == str(LIKELY.argmax())


DATA = "net.onnx.data"


def beside(folder: Path, files: str = f'files = ["{DATA}"]') -> Path:
    """The graph of a classifier with its weights in a file of their own, as exporters write large ones."""
    products(folder / "net.onnx")
    whole = graphs.onnx.load(folder / "net.onnx")
    graphs.onnx.save(whole, folder / "net.onnx", save_as_external_data=True, location=DATA, size_threshold=0)
    assert (folder / DATA).stat().st_size > 0
    described(folder, "logits")
    (folder / "model.toml").write_text(f"{files}\n{(folder / 'model.toml').read_text()}")
    return folder


def test_a_graph_with_its_weights_beside_it_is_built_as_one_file(tmp_path: Path) -> None:
    for name in ("whole", "mine"):
        (tmp_path / name).mkdir()
    products(tmp_path / "whole" / "net.onnx")
    expected = answer(described(tmp_path / "whole", "logits"))
    folder = beside(tmp_path / "mine")
    assert answer(folder) == expected
    with zipfile.ZipFile(next((folder / "store").glob("*.mar"))) as archive:
        assert "net.onnx" in archive.namelist()
        assert DATA not in archive.namelist()


def test_weights_beside_a_graph_are_of_its_folder_and_named(tmp_path: Path) -> None:
    folder = beside(tmp_path, "")
    assert refusal(folder)[0] == f"net.onnx keeps weights in {DATA}, which model.toml does not name"
    beside(folder)
    (folder / DATA).unlink()
    assert refusal(folder) == (f"net.onnx keeps weights in {DATA}, which is not beside it", "add the file")
    secret = tmp_path.with_name(f"{tmp_path.name}-secret")
    secret.write_bytes(bytes(100))
    (folder / DATA).symlink_to(secret)
    assert "a link out of the model's folder" in refusal(folder)[0]
    for location in (f"../{secret.name}", str(secret)):
        graph = graphs.onnx.load(folder / "net.onnx", load_external_data=False)
        for tensor in graph.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        (folder / "net.onnx").write_bytes(graph.SerializeToString())
        assert "which is not beside it" in refusal(folder)[0]
