"""Which engine and precision `auto` takes: compared with fp32 where it runs, remembered beside the extraction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import Request, Settings, engines
from slotwise.worker.engines import choice, comparison, load_engine, processor, samples, versions
from slotwise.worker.environment import settings

MODEL = {
    "handler": "tensor_classifier",
    "labels": ["a", "b", "c"],
    "input": {"shape": [3]},
    "weights": {"onnx": "net.onnx", "torchscript": "net.pt", "openvino_int8": "net.xml"},
}


class Made:
    """An engine without a network: its logits are its inputs, off by `error` unless it computes in fp32."""

    def __init__(self, name: str, precision: str, error: float = 0.0) -> None:
        self.name, self.precision, self.device, self.error = name, precision, "cpu", error

    def __call__(self, inputs: Any) -> Any:
        return np.asarray(inputs) if self.precision == "fp32" else np.asarray(inputs) + np.float32([self.error, 0, 0])


class Machine:
    """Stands in for the engines' modules: what each would do, and what was loaded."""

    def __init__(self) -> None:
        self.error = 0.0
        self.broken: tuple[str, ...] = ()
        self.loaded: list[str] = []

    def module(self, path: str) -> Any:
        name = path.rpartition(".")[2]

        def load(model_dir: Path, wanted: Settings) -> Made:
            if name in self.broken:
                raise RuntimeError(f"{name} does not run here")
            self.loaded.append(f"{name}-{wanted.precision}")
            return Made(name, wanted.precision, self.error)

        return type("Module", (), {"load": staticmethod(load)})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with every engine and with bf16 in hardware."""
    made = Machine()
    monkeypatch.setattr(engines, "import_module", made.module)
    monkeypatch.setattr(engines, "installed", lambda name: True)
    monkeypatch.setattr(processor, "has_bf16", lambda: True)
    return made


def chosen(model_dir: Path, model: dict[str, Any] = MODEL, **changes: Any) -> tuple[str, str]:
    engine = load_engine(model_dir, Settings(threads=1, model=model).but(**changes))
    return engine.name, engine.precision


def test_bf16_that_answers_as_fp32_is_served_and_compared_once(machine: Machine, tmp_path: Path) -> None:
    machine.error = 0.01
    assert chosen(tmp_path) == ("openvino", "bf16")
    assert machine.loaded == ["openvino-fp32", "openvino-bf16"]
    assert chosen(tmp_path) == ("openvino", "bf16")
    assert machine.loaded[2:] == ["openvino-bf16"]  # the second worker finds the figure of the first


def test_bf16_that_changes_answers_is_passed_over_and_so_is_the_comparison(machine: Machine, tmp_path: Path) -> None:
    machine.error = 0.5
    assert chosen(tmp_path) == ("openvino", "fp32")
    assert chosen(tmp_path) == ("openvino", "fp32")
    assert machine.loaded == ["openvino-fp32", "openvino-bf16", "openvino-fp32"]
    assert chosen(tmp_path, precision="bf16")[1] == "bf16"  # a profile may ask for it by name


def test_a_named_precision_that_is_far_off_is_refused_in_one_sentence(machine: Machine, tmp_path: Path) -> None:
    machine.error = float("nan")
    for precision in ("bf16", "int8", "bf16"):
        with pytest.raises(ValueError, match=f"openvino in {precision} is refused here: .* use precision auto"):
            chosen(tmp_path, engine="openvino", precision=precision)
    assert machine.loaded[-1] == "openvino-bf16"  # remembered, although JSON has no infinity
    assert chosen(tmp_path) == ("openvino", "fp32")


def test_what_was_not_compared_is_not_served(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(tmp_path, {**MODEL, "input": {}}) == ("openvino", "fp32")  # nothing to compare on
    monkeypatch.setattr(comparison, "compare", lambda *_: 1 / 0)
    assert chosen(tmp_path) == ("openvino", "fp32")
    monkeypatch.setattr(processor, "has_bf16", lambda: False)
    assert chosen(tmp_path) == ("openvino", "fp32")
    assert chosen(tmp_path, engine="onnxruntime") == ("onnxruntime", "fp32")
    assert not list(tmp_path.iterdir())


def test_auto_never_takes_int8(machine: Machine, tmp_path: Path) -> None:
    only = {**MODEL, "weights": {"openvino_int8": "net.xml"}}
    with pytest.raises(ValueError, match=r"carries no weights for openvino in auto; .* for torch in auto"):
        chosen(tmp_path, only)
    assert chosen(tmp_path, only, precision="int8") == ("openvino", "int8")  # nothing to compare it with: as it was asked


def test_an_engine_that_does_not_run_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    machine.broken = ("openvino",)
    assert chosen(tmp_path) == ("onnxruntime", "fp32")
    machine.broken = ("openvino", "onnxruntime")
    assert chosen(tmp_path) == ("torch", "bf16")
    machine.broken = ("openvino", "onnxruntime", "torch")
    with pytest.raises(RuntimeError, match="torch does not run here"):
        chosen(tmp_path)
    with pytest.raises(RuntimeError, match="openvino does not run here"):
        chosen(tmp_path, engine="openvino")


def test_a_handler_that_feeds_its_engine_otherwise_is_loaded_untried(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def picky(self: Made, inputs: Any) -> Any:
        raise TypeError("a dict is wanted")

    assert chosen(tmp_path, {**MODEL, "handler": "own.py"}) == ("openvino", "bf16")
    monkeypatch.setattr(Made, "__call__", picky)
    with pytest.raises(TypeError, match="a dict is wanted"):
        chosen(tmp_path)
    assert chosen(tmp_path, {**MODEL, "handler": "own.py"}) == ("openvino", "fp32")


@pytest.mark.parametrize("changed", ["processor", "weights", "release", "python"])
def test_a_figure_of_another_machine_or_network_does_not_count(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    assert chosen(tmp_path) == ("openvino", "bf16")
    machine.error = 0.5
    assert chosen(tmp_path) == ("openvino", "bf16")
    if changed == "weights":
        (tmp_path / "net.onnx").write_bytes(b"another")
    elif changed == "processor":
        monkeypatch.setattr(versions, "fingerprint", lambda: "another")
    elif changed == "python":
        monkeypatch.setattr(versions.platform, "python_version", lambda: "another")
    else:
        monkeypatch.setattr(versions, "version", lambda name: "another")
    assert chosen(tmp_path) == ("openvino", "fp32")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_no_obstacle(machine: Machine, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert chosen(tmp_path) == chosen(tmp_path) == ("openvino", "bf16")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert chosen(tmp_path) == chosen(tmp_path) == ("openvino", "bf16")
    assert machine.loaded == ["openvino-fp32", "openvino-bf16"] * 2


def test_many_workers_at_once_and_a_damaged_file(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / choice.FILE).write_text('{"half')
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: chosen(tmp_path), range(32)))
    assert set(found) == {("openvino", "bf16")}
    (entry,) = json.loads((tmp_path / choice.FILE).read_text()).values()
    assert entry["largest_difference"] == 0.0
    assert [file.name for file in tmp_path.iterdir()] == [choice.FILE]


def test_a_comparison_takes_a_second_at_most_but_one_input_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def slow(rows: Any) -> Any:
        asked.append(rows)
        return rows

    now = iter(np.arange(0, 100, 0.4))
    monkeypatch.setattr(comparison.time, "monotonic", lambda: float(next(now)))
    inputs = [np.full((1, 3), float(i)) for i in range(20)]
    assert comparison.compare(MODEL, slow, lambda rows: rows, inputs) == 0.0
    assert len(asked) == 3
    monkeypatch.setattr(comparison, "SECONDS", 0.0)
    assert comparison.compare(MODEL, slow, lambda rows: rows, inputs) == 0.0
    assert len(asked) == 4


def test_how_far_two_outputs_are_apart() -> None:
    scores = np.array([[2.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    moved = scores + np.array([[0.5, 0, 0], [0, 0.5, 0]])
    assert 0.05 < comparison.difference(MODEL, scores, moved) < 0.1
    assert comparison.difference({**MODEL, "options": {"softmax": False}}, scores, moved) == 0.5
    assert comparison.difference({"handler": "mine.py"}, scores, moved) == pytest.approx(0.5 / 9)
    assert comparison.difference({"handler": "mine.py"}, scores[:, :1], moved[:, :1]) == 0.25  # one column is no softmax
    assert comparison.difference(MODEL, scores, scores[:, :2]) == float("inf")
    assert comparison.difference(MODEL, scores, scores * np.nan) == float("inf")
    with pytest.raises(ValueError, match="not finite in fp32"):
        comparison.compare(MODEL, lambda rows: rows * np.nan, lambda rows: rows, [scores])


class Classifier:
    """What load_engine asks of a handler."""

    def example(self) -> Any:
        return np.zeros(3, np.float32)

    def read(self, request: Request) -> list[Any]:
        known = "json" in request.headers["content-type"]
        return [np.float32(json.loads(request.body))] if known else [ValueError("a record's error")]

    def collate(self, items: list[Any]) -> Any:
        return np.stack(items)


def test_the_archives_examples_are_what_it_is_compared_on(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "one.json").write_text("[1, 2, 3]")
    (tmp_path / "examples" / "two.json").write_text("no JSON")
    (tmp_path / "examples" / "three.f32").write_text("[4, 5, 6]")
    inputs = samples.handled(tmp_path, Classifier())
    assert [rows.shape for rows in inputs] == [(2, 3)] + [(1, 3)] * 4
    assert inputs[1].tolist() == [[1, 2, 3]]
    assert inputs[0][1].any()


@pytest.mark.parametrize(
    ("model", "shape", "dtype"),
    [
        ({"handler": "image_classifier", "input": {"shape": [3, 4, 5], "dtype": "uint8"}}, (2, 4, 5, 3), "uint8"),
        ({"handler": "image_classifier", "input": {"shape": [3, 4, 5]}}, (2, 3, 4, 5), "float32"),
        ({"handler": "tensor_classifier", "input": {"shape": [3, 4, 5], "dtype": "uint8"}}, (2, 3, 4, 5), "uint8"),
        ({"handler": "tensor_classifier", "input": {"shape": [7], "dtype": "int64"}}, (2, 7), "int64"),
    ],
)
def test_inputs_by_the_description_alone(model: dict[str, Any], shape: tuple[int, ...], dtype: str) -> None:
    inputs = samples.described(model)
    assert (inputs[0].shape, inputs[0].dtype) == (shape, dtype)
    assert {rows.shape for rows in inputs[1:]} == {(1, *shape[1:])}
    assert samples.described({}) == []


def test_a_handler_without_an_example_gives_nothing_to_try_an_engine_on(tmp_path: Path) -> None:
    class Shy(Classifier):
        def example(self) -> Any:
            return None

    assert samples.handled(tmp_path, Shy()) == []


def test_an_engine_that_gives_another_number_of_outputs_than_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    class Short(Made):
        def __call__(self, inputs: Any) -> Any:
            return super().__call__(inputs)[:1]

    load = staticmethod(lambda model_dir, settings: Short("torch", "fp32"))
    monkeypatch.setattr(engines, "import_module", lambda path: type("Module", (), {"load": load}))
    with pytest.raises(ValueError, match="torch gives 1 outputs for 2 rows"):
        chosen(tmp_path, engine="torch", precision="fp32")


def test_a_model_may_bring_its_own_number_of_workers_for_a_profile(tmp_path: Path) -> None:
    about = {"model": {**MODEL, "profiles": {"cpu": {"initial_workers": 3}}}, "profiles": {"cpu": {"workers": 1}}}
    (tmp_path / "slotwise.json").write_text(json.dumps(about))
    assert Settings.load(tmp_path, {}).workers == 3


# Where a profile's GPU is not there ------------------------------------------------------------------------------------


def carried(model_dir: Path, **keys: Any) -> Path:
    (model_dir / "slotwise.json").write_text(json.dumps({"model": MODEL, "profiles": {"cuda": {"device": "cuda", **keys}}}))
    return model_dir


def test_auto_is_decided_for_the_device_that_is_used(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = carried(tmp_path, engine="auto", precision="fp16")
    monkeypatch.setattr(settings, "has_cuda", lambda: False)
    without = Settings.load(model_dir, {"SLOTWISE_PROFILE": "cuda"})
    assert (without.profile, without.device, without.precision) == ("cuda", "cpu", "auto")
    assert load_engine(model_dir, without).name == "openvino"
    monkeypatch.setattr(settings, "has_cuda", lambda: True)
    with_gpu = Settings.load(model_dir, {"SLOTWISE_PROFILE": "cuda"})
    assert (with_gpu.device, with_gpu.precision) == ("cuda", "fp16")
    assert load_engine(model_dir, with_gpu).name == "torch"


def test_a_named_engine_or_precision_stays_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "has_cuda", lambda: False)
    found = Settings.load(carried(tmp_path, engine="torch", precision="fp32"), {"SLOTWISE_PROFILE": "cuda"})
    assert (found.device, found.engine, found.precision) == ("cpu", "torch", "fp32")


def test_nobody_looks_for_a_gpu_that_no_profile_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "has_cuda", lambda: pytest.fail("torch would be imported"))
    assert Settings.load(tmp_path, {}).device == "cpu"


@pytest.mark.skipif(settings.has_driver(), reason="there is a driver")
def test_without_a_driver_nobody_imports_torch_to_look_for_a_gpu() -> None:
    program = "import sys; from slotwise.worker.environment.settings import has_cuda; print(has_cuda(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("there", [True, False])
def test_with_a_driver_torch_says_whether_there_is_a_gpu(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(settings, "has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)  # a driver that is too old, or hidden GPUs
    found = Settings.load(carried(tmp_path, precision="fp16"), {"SLOTWISE_PROFILE": "cuda"})
    assert (found.device, found.precision) == (("cuda", "fp16") if there else ("cpu", "auto"))


def test_where_nobody_knows_what_a_driver_is_called_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert settings.has_driver()


def test_values_are_compared_as_shares_and_scores_as_probabilities() -> None:
    exact, other = [[1000.0, 2.0]], [[1010.0, 2.0]]
    of_labels = {"labels": ["a", "b"], "output": "regression"}
    assert comparison.difference(of_labels, exact, other) == pytest.approx(0.01)
    assert comparison.difference({"labels": ["a", "b"], "output": "logits"}, exact, other) == 0.0, "both are surely a"
