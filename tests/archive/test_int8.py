"""`slotwise build --int8` is refused where int8 is not there, or does not answer as fp32 does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.archive.network import int8_examples
from slotwise.archive.network.int8 import Int8Agreement, agreement_in, agreement_of, need_int8, served_in_int8
from slotwise.archive.network.int8_examples import need_examples
from slotwise.archive.scaffold.new import new
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from tests.worker.serving import Served

MODELS = Path(__file__).parents[2] / "models"
GOOD = {
    "passed": True,
    "checked": True,
    "top1_agreement": 0.95,
    "largest_difference": 0.2,
    "sure": 50,
    "sure_top1_agreement": 0.98,
}


def test_what_was_measured_is_said_in_one_line() -> None:
    measured = {"pictures": 64, "engines": {"openvino-int8": GOOD}}
    agreement = agreement_of(load_spec(MODELS / "resnet18"), measured)
    assert agreement == Int8Agreement(64, 0.95, 50, 0.98, 0.2)
    assert agreement.sentence() == (
        "int8 gives the label of fp32 for 95.0% of 64 pictures, 98.0% of the 50 that fp32 is sure of;"
        " a probability moves by up to 0.20"
    )


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ({**GOOD, "passed": False, "why": "only 91.0% of its answers agree with eager fp32"}, "not good enough: only 91.0%"),
        ({"passed": False, "checked": True, "why": "RuntimeError: no kernel"}, "not good enough: RuntimeError: no kernel"),
        ({"passed": True, "checked": False, "why": "this machine cannot"}, "nobody knows .*: this machine cannot"),
        (None, "nobody knows .*: its make.py measured nothing"),
    ],
)
def test_int8_that_is_not_known_to_be_good_is_refused(verdict: dict[str, Any] | None, message: str) -> None:
    measured = {"pictures": 64, "engines": {"openvino-int8": verdict} if verdict else {}}
    with pytest.raises(SlotwiseError, match=message) as refused:
        agreement_of(load_spec(MODELS / "resnet18"), measured)
    assert refused.value.hint


def test_a_model_without_int8_weights_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlotwiseError, match="moods has no int8 weights"):
        need_int8(load_spec(MODELS / "moods"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SlotwiseError, match="needs the Python package nncf"):
        need_int8(load_spec(MODELS / "resnet18"))


def test_only_profiles_of_the_cpu_serve_int8_and_the_models_own_wishes_stay() -> None:
    spec = load_spec(MODELS / "resnet18")
    profiles = served_in_int8(spec).profiles
    assert profiles["cpu"] == spec.profiles["cpu"] | {"engine": "openvino", "precision": "int8"}
    assert profiles.get("cuda", {}) == spec.profiles.get("cuda", {})


def described(folder: Path, text: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(f'name = "mine"\n{text}')
    return load_spec(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'handler = "image_classifier"\nexamples = ["a.png"]\n[weights]\ntorchscript = "a.pt"\n',
            "no ONNX graph to make them from",
        ),
        ('handler = "own.py"\n[weights]\nonnx = "a.onnx"\n', "only classifiers of pictures and tensors"),
        ('handler = "image_classifier"\noutput = "embedding"\n[weights]\nonnx = "a.onnx"\n', "only classifiers of pictures"),
        ('handler = "image_classifier"\n[weights]\nonnx = "a.onnx"\n', "0 examples, and int8 is calibrated with at least 1"),
        ('handler = "tensor_classifier"\nexamples = ["a.npy"]\n[weights]\nonnx = "a.onnx"\n', "1 examples, .* at least 16"),
    ],
)
def test_what_is_missing_to_calibrate_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SlotwiseError, match=message) as refused:
        need_examples(described(tmp_path, text))
    assert "model.toml" in refused.value.hint


@pytest.mark.parametrize("softmax", [False, True])
def test_a_graph_of_tensors_is_calibrated_by_its_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, softmax: bool
) -> None:
    for package in ("nncf", "openvino", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    draw = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])] + [helper.make_node("Softmax", ["y"], ["p"], axis=1)] * softmax
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", n]) for name, n in (("x", 16), ("yp"[softmax], 3))]
    weight = numpy_helper.from_array(np.eye(16, 3, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    folder = tmp_path / "mine"
    names = [f"{i}.npy" for i in range(20)]
    text = f'handler = "tensor_classifier"\nlabels = ["a", "b", "c"]\nexamples = {names}\n'
    text += f'output = "{"probabilities" if softmax else "logits"}"\n'
    described(folder, f'{text}[input]\nshape = [16]\n[weights]\nonnx = "a.onnx"\n')
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "a.onnx")
    for i, name in enumerate(names):
        np.save(folder / name, (3 * np.eye(16)[i % 3] + 0.1 * draw.normal(size=16)).astype(np.float32))
    built = [build(folder, tmp_path / store, int8=True, prove=lambda laid_out, spec: None) for store in ("first", "second")]
    assert built[0].read_bytes() == built[1].read_bytes()
    found = agreement_in(built[0])
    assert (found.pictures, found.same_label) == (10, 1.0)
    info = inspect(built[0])
    assert info.model["weights"]["openvino_int8"] == "int8.xml"
    assert info.wishes("cpu") == {"engine": "openvino", "precision": "int8"}
    Served.of(built[0], {"engine": "openvino", "precision": "int8"})


def test_int8_that_answers_otherwise_than_fp32_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    new(str(tmp_path / "mine"), "onnx")
    real = int8_examples._outputs

    def turned(spec: Any, folder: Path, weights: Any, engine: str, precision: str, inputs: Any) -> Any:
        found = real(spec, folder, weights, engine, precision, inputs)
        return found[:, ::-1] if precision == "int8" else found

    monkeypatch.setattr(int8_examples, "_outputs", turned)
    with pytest.raises(SlotwiseError, match="mine in int8 is not good enough"):
        build(tmp_path / "mine", tmp_path / "store", int8=True, prove=lambda laid_out, spec: None)
    assert not (tmp_path / "store" / "mine.mar").exists()
    monkeypatch.setattr(int8_examples, "_outputs", real)
    text = (tmp_path / "mine" / "model.toml").read_text()
    (tmp_path / "mine" / "model.toml").write_text(f"{text}\n[options]\nint8_exact = 3\n")  # as the refusal advises
    build(tmp_path / "mine", tmp_path / "store", int8=True, prove=lambda laid_out, spec: None)


@pytest.mark.parametrize(
    "changes", [{"options": {"int8_exact": 3}}, {"output": "probabilities"}, {"labels": ["c", "b", "a"]}, {}, {"version": "2"}]
)
def test_weights_are_kept_for_what_they_were_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    new(str(tmp_path / "mine"), "onnx")
    spec = load_spec(tmp_path / "mine")

    def key(one: Any) -> str:
        return str(int8_examples._inputs(one, [tmp_path / "mine"], tmp_path / "mine" / "model.onnx")[2])

    first = key(spec)
    assert (key(spec.model_copy(update=changes)) == first) == (changes in ({}, {"version": "2"}))
    monkeypatch.setattr(int8_examples, "version_of", lambda package: "another")
    assert key(spec) != first


@pytest.mark.parametrize(
    ("output", "fp32", "int8", "moved"),
    [
        ("logits", [[-5.0]] * 3, [[5.0]] * 3, 0.99),  # one number, of the second of two labels
        ("probabilities", [[0.9]] * 3, [[0.1]] * 3, 0.8),
        ("probabilities", [[0.01, 0.01]] * 3, [[0.9, 0.9]] * 3, 0.89),  # each label by itself
    ],
)
def test_what_is_compared_is_what_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, fp32: Any, int8: Any, moved: float
) -> None:
    pytest.importorskip("nncf")
    import numpy as np

    from slotwise.zoo import int8_weights

    text = f'handler = "tensor_classifier"\nlabels = ["no", "yes"]\noutput = "{output}"\n[weights]\nonnx = "a.onnx"\n'
    spec = described(tmp_path, text)
    monkeypatch.setattr(int8_weights, "write", lambda *_: None)
    monkeypatch.setattr(int8_examples, "_outputs", lambda *told: np.array(int8 if told[4] == "int8" else fp32))
    int8_examples._write(spec, tmp_path / "a.onnx", tmp_path, [], fp32)
    verdict = json.loads((tmp_path / int8_examples.MEASURED).read_text())["engines"]["openvino-int8"]
    assert verdict["largest_difference"] == pytest.approx(moved, abs=0.005)
    assert verdict["passed"] == (np.shape(fp32)[1] == 2)


def test_nobody_knows_what_int8_answers_where_fp32_is_not_finite() -> None:
    pytest.importorskip("torch")
    import numpy as np

    from slotwise.zoo.agreement import compare

    assert "not finite" in compare(np.full((3, 2), np.nan), np.zeros((3, 2)), "int8", True)["why"]


def test_examples_that_are_all_alike_do_not_calibrate(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import numpy as np

    new(str(tmp_path / "mine"), "onnx")
    names = [f"{i}.npy" for i in range(16)]
    spec = load_spec(tmp_path / "mine").model_copy(update={"handler": "tensor_classifier", "examples": names})
    for name in names:
        np.save(tmp_path / "mine" / name, np.ones(spec.input.shape, spec.input.dtype))
    with pytest.raises(SlotwiseError, match="has 1 examples that are not alike, and int8 is calibrated with at least 16"):
        int8_examples.with_int8(spec, [tmp_path / "mine"])


def test_half_written_weights_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build may pack what is there: a folder is there whole or not at all."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    new(str(tmp_path / "mine"), "onnx")
    spec = load_spec(tmp_path / "mine")

    def fails(spec: Any, graph: Path, out: Path, *inputs: Any) -> None:
        (out / int8_examples.FILE).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(int8_examples, "_write", fails)
    with pytest.raises(OSError, match="disk full"):
        int8_examples.with_int8(spec, [tmp_path / "mine"])
    assert not list((tmp_path / "home").rglob(int8_examples.FILE))
