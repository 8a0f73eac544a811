"""The engines: every form of weights, the order of `auto`, what is refused and with which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from slotwise.errors import SlotwiseError  # noqa: E402
from slotwise.model_spec import ModelSpec  # noqa: E402
from slotwise.worker import Settings, engines  # noqa: E402
from slotwise.worker.engines import load_engine, processor  # noqa: E402
from slotwise.worker.engines.pretrained import load_pretrained, suited  # noqa: E402
from slotwise.worker.engines.torch import as_set_here, build_module  # noqa: E402
from slotwise.worker.labels import probabilities  # noqa: E402
from slotwise.zoo import agreement, vision  # noqa: E402

FORMS = {"torchscript": "model.pt", "export": "model.pt2", "onnx": "model.onnx", "openvino_int8": "int8.xml"}
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(48, 3))
"""


@pytest.fixture(scope="module")
def pixels() -> Any:
    return np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), np.uint8)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    """A small network on pixels, uint8 [b, 16, 16, 3] to [b, 5]."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)]
    return vision.PixelNetwork(nn.Sequential(*layers), [0.5] * 3, [0.25] * 3).eval()


@pytest.fixture(scope="module")
def exported(module: nn.Module, pixels: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every form of its weights in one folder, as the build writes them."""
    from slotwise.console import progress

    folder = tmp_path_factory.mktemp("exported")
    spec = ModelSpec.model_validate({"name": "small", "handler": "image_classifier", "weights": FORMS})
    with progress() as shown:
        vision.export(spec, module, pixels, folder, shown, trained=False)
    return folder


def settings(*forms: str, **changes: Any) -> Settings:
    return Settings(threads=2, model={"weights": {form: FORMS[form] for form in forms}}).but(**changes)


@pytest.mark.parametrize(
    ("form", "engine", "precision"),
    [
        ("torchscript", "torch", "fp32"),
        ("export", "torch", "fp32"),
        ("onnx", "onnxruntime", "fp32"),
        ("onnx", "openvino", "fp32"),
        ("openvino_int8", "openvino", "int8"),
    ],
)
def test_every_form_gives_the_answers_of_eager_fp32(
    exported: Path, module: nn.Module, pixels: Any, form: str, engine: str, precision: str
) -> None:
    loaded = load_engine(exported, settings(form, engine=engine, precision=precision))
    assert (loaded.name, loaded.precision, loaded.device) == (engine, precision, "cpu")
    assert getattr(loaded, "warm_up_runs", 1) == (2 if form == "torchscript" else 1)
    with torch.inference_mode():
        wanted = module(torch.from_numpy(pixels)).softmax(1).numpy()
    for size in (1, 3, 8):
        got = np.asarray(loaded(pixels[:size]))
        assert got.shape == (size, 5)
        assert np.abs(probabilities(got) - wanted[:size]).max() < (0.02 if precision == "int8" else 1e-4)


def test_an_answer_is_not_overwritten_by_the_next_call(exported: Path, pixels: Any) -> None:
    for engine in ("torch", "onnxruntime", "openvino"):
        loaded = load_engine(exported, settings("torchscript", "onnx", engine=engine, precision="fp32"))
        first = np.asarray(loaded(pixels[:2]))
        kept = first.copy()
        loaded(pixels[2:4])
        assert (first == kept).all(), engine


def test_nobody_is_told_that_openvino_was_imported(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from slotwise.worker.engines import openvino
        from openvino.tools.ovc import telemetry_utils
        print(telemetry_utils.tm.__name__, "openvino_telemetry.main" in sys.modules)
    """
    environ = {**os.environ, "HOME": str(tmp_path), "CI": ""}  # it keeps a user's number in HOME, and is silent in CI
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "False"]
    assert not list(tmp_path.iterdir())


def test_a_state_dict_and_the_file_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    linear = nn.Linear(48, 3)
    torch.save({"1.weight": linear.weight, "1.bias": linear.bias}, tmp_path / "weights.pt")
    model = {"weights": {"state_dict": "weights.pt", "module": "net.py:Net"}}
    loaded = load_engine(tmp_path, Settings(model=model, precision="fp32", threads=1))
    inputs = torch.rand(2, 3, 4, 4)
    assert np.allclose(np.asarray(loaded(inputs.numpy())), linear(inputs.flatten(1)).detach().numpy(), atol=1e-5)


def test_bf16_stays_near_fp32(exported: Path, module: nn.Module, pixels: Any) -> None:
    loaded = load_engine(exported, settings("torchscript", engine="torch", precision="bf16"))
    assert loaded.precision == "bf16"
    with torch.inference_mode():
        wanted = module(torch.from_numpy(pixels[:4])).softmax(1).numpy()
    assert np.abs(probabilities(np.asarray(loaded(pixels[:4]))) - wanted).max() < 0.02


def test_auto_takes_the_first_that_is_installed_and_fits(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*forms: str, **changes: Any) -> str:
        return load_engine(exported, settings(*forms, **changes)).name

    assert chosen("torchscript", "onnx") == "openvino"
    assert chosen("torchscript") == "torch"
    assert chosen("openvino_int8", "torchscript", precision="int8") == "openvino"
    monkeypatch.setattr(engines, "installed", lambda name: name != "openvino")
    assert chosen("torchscript", "onnx") == "onnxruntime"
    monkeypatch.setattr(engines, "installed", lambda name: name == "torch")
    assert chosen("torchscript", "onnx") == "torch"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "caffe"}, "must be auto or one of"),
        ({"engine": "openvino"}, "no weights for openvino"),
        ({"engine": "torch", "precision": "int8"}, "no weights for torch in int8"),
        ({"engine": "torch", "precision": "fp16"}, "does not compute in fp16 on a CPU"),
        ({"engine": "openvino", "weights": "onnx", "device": "cuda"}, "openvino runs on the CPU here"),
        ({"engine": "onnxruntime", "weights": "onnx", "device": "cuda"}, "onnxruntime computes in fp32 on the CPU here"),
        ({"precision": "int8"}, "no engine can serve this archive here: the archive carries no weights for openvino in int8;"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(exported: Path, changes: dict[str, str], said: str) -> None:
    form = changes.pop("weights", "torchscript")
    with pytest.raises(ValueError, match=said):
        load_engine(exported, settings(form, **changes))


def test_a_file_without_the_module_that_was_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\n\nclass Net(torch.nn.Linear):\n    pass\n")
    with pytest.raises(ValueError, match=r"net\.py defines no torch module Other"):
        build_module(tmp_path / "net.py", "Other")
    with pytest.raises(ValueError, match=r"net\.txt cannot be imported"):
        build_module(tmp_path / "net.txt")


def test_a_folder_without_a_model_is_no_name_to_look_for_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json in the folder model"):
        load_pretrained("AutoModel", tmp_path / "model", "cpu", "fp32")


def test_small_weights_have_one_thread_of_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTranslate2's MKL takes as many as the environment says: two were four times slower than the one that was asked for."""
    monkeypatch.setattr(os, "environ", {"MKL_NUM_THREADS": "2"})
    assert suited(Settings(threads=2), {"threads": 1}).threads == 1
    assert os.environ["MKL_NUM_THREADS"] == "1"
    assert suited(Settings(threads=2), {"threads": None}).threads == 2
    assert os.environ["MKL_NUM_THREADS"] == "2"


def test_the_build_compares_every_engine_and_leaves_nothing_measured_in_the_archive(
    exported: Path, module: nn.Module, pixels: Any
) -> None:
    with torch.inference_mode():
        verdicts = agreement.check(exported, FORMS, lambda rows: module(torch.from_numpy(rows)), pixels, False)["engines"]
    assert {"torch-fp32", "onnxruntime-fp32", "openvino-fp32", "openvino-int8"} <= set(verdicts)
    assert all(verdict["passed"] for verdict in verdicts.values())
    assert verdicts["openvino-bf16"]["checked"] == processor.has_bf16()
    assert {file.name for file in exported.iterdir()} == {*FORMS.values(), "int8.bin", "facts.json", agreement.KEPT}
    assert set(json.loads((exported / "facts.json").read_text())) == {"untrained", "weights"}


def test_what_counts_as_agreement() -> None:
    wanted = np.eye(4)[np.arange(200) % 4] * 6.0
    wrong = wanted.copy()
    wrong[:3] = wrong[:3, ::-1]  # 3 of 200: 98.5%
    assert agreement.compare(wanted, wanted, "fp32", True)["passed"]
    assert not agreement.compare(wanted, wrong, "fp32", True)["passed"]
    assert agreement.compare(wanted, wrong, "int8", True)["passed"]
    assert not agreement.compare(wanted, wrong, "int8", False)["passed"]
    assert agreement.compare(wanted, wanted + np.array([0.01, 0, 0, 0]), "int8", False)["passed"]
    assert not agreement.compare(wanted, wanted[:, :3], "fp32", True)["passed"]
    assert not agreement.compare(wanted, wanted * np.nan, "fp32", False)["passed"]


def test_a_model_that_an_engine_answers_otherwise_is_not_built(exported: Path, pixels: Any, tmp_path: Path) -> None:
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(SlotwiseError, match="onnxruntime-fp32 does not give the answers of the network"):
        agreement.check(tmp_path, {"onnx": "model.onnx"}, lambda rows: np.eye(5)[np.zeros(len(rows), int)] * 9.0, pixels, False)


ONE_CHANNEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 4, 3), nn.Linear(4 * 8 * 8, 3)

    def forward(self, x):
        return self.head(self.two(self.one(x).relu()).relu().view(-1, 4 * 8 * 8))
"""


@pytest.mark.parametrize("handler", ["image_classifier", "tensor_classifier"])
@pytest.mark.parametrize("form", ["state_dict", "torchscript"])
def test_one_channel_is_in_the_layout_that_the_network_was_tried_in(tmp_path: Path, form: str, handler: str) -> None:
    """With one channel both layouts are the same memory, and only the strides tell a network which is meant."""
    from slotwise.worker.engines.torch import build_module

    (tmp_path / "net.py").write_text(ONE_CHANNEL)
    torch.manual_seed(0)
    net = build_module(tmp_path / "net.py", "Net").eval()
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    torch.jit.script(net).save(str(tmp_path / "model.pt"))
    weights = {"state_dict": "weights.pt", "module": "net.py:Net"} if form == "state_dict" else {"torchscript": "model.pt"}
    model = {"handler": handler, "weights": weights, "input": {"shape": [1, 12, 12]}}
    engine = load_engine(tmp_path, Settings(engine="torch", precision="fp32", threads=1, model=model))
    for rows in (1, 2, 3, 8):
        pixels = np.random.default_rng(rows).standard_normal((rows, 12, 12, 1)).astype(np.float32)
        for inputs in (pixels.transpose(0, 3, 1, 2), np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))):
            with torch.inference_mode():
                expected = net(torch.as_tensor(inputs.copy("C"))).numpy()
            assert np.allclose(engine(inputs), expected, atol=1e-5)


def test_a_traced_convolution_does_here_what_cudnn_is_set_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace keeps what was set where it was made: on a GPU it would go on computing in TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    pixels = torch.rand(2, 1, 6, 6)
    made = torch.jit.trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).eval(), pixels)
    script = torch.jit.freeze(made.eval())
    expected = script(pixels)

    def said() -> tuple[Any, Any]:
        (node,) = script.graph.findAllNodes("aten::_convolution", recurse=True)
        inputs = [one.toIValue() for one in node.inputs()]
        return inputs[10], inputs[12]

    assert said() == (False, True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert as_set_here(script) is script
    assert said() == (False, False)
    assert torch.equal(script(pixels), expected)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_precision_that_a_cpus_engine_does_not_compute_in_is_named(precision: str) -> None:
    with pytest.raises(ValueError, match=f"this engine does not compute in {precision} on a CPU: use auto, fp32 or bf16"):
        processor.cpu_precision(precision)


def test_a_graph_of_one_row_at_a_time_is_asked_row_by_row() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from slotwise.worker.engines.onnxruntime import OnnxRuntimeEngine

    class OneRow:
        """Stands for a session whose graph has a batch of 1."""

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="x", shape=[1, 2])]

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(name="y")]

        def run(self, outputs: list[str], given: dict[str, Any]) -> list[Any]:
            if len(given["x"]) != 1 or outputs != ["y"]:
                raise onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument("wrong dimensions")
            return [2 * given["x"]]

    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert OnnxRuntimeEngine(OneRow())(rows).tolist() == (2 * rows).tolist()


@pytest.mark.parametrize(
    ("kind", "is_kind", "numbers"),
    [
        ("float64", "float64", [16777217, 16777219]),
        ("float32", "float32", [16777216, 16777220]),
        ("bfloat16", "float32", [2, 4]),
    ],
)
def test_torch_gives_numbers_as_precise_as_the_network_does(
    kind: str, is_kind: str, numbers: list[int], tmp_path: Path
) -> None:
    class Adds(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.to(getattr(torch, kind)) + (1.0 if kind == "bfloat16" else 16777216.0)

    torch.jit.trace(Adds(), torch.zeros(2, 2)).save(str(tmp_path / "m.pt"))
    engine = load_engine(tmp_path, Settings(engine="torch", threads=1, model={"weights": {"torchscript": "m.pt"}}))
    given = engine(np.array([[1, 3]], np.float32))
    assert (str(given.dtype), given.tolist()) == (f"torch.{is_kind}", [numbers])
