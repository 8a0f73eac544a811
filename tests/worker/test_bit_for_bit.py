"""Bit for bit: beside 1 to 16 mates a row gives what it gives among copies of itself. Each given model in the long run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from slotwise.archive.build import build  # noqa: E402
from slotwise.archive.inspection import extract  # noqa: E402
from slotwise.files.project import handler_file  # noqa: E402
from tests.support import bit_for_bit  # noqa: E402

SHAPE = (3, 16, 16)


def network(mixes: bool = False) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 4)]
    return torch.nn.Sequential(*layers).train(mixes)


def archive(folder: Path, weights: dict[str, str]) -> Path:
    """An extracted archive of a tensor classifier, as far as its handler asks for one."""
    (folder / "MAR-INF").mkdir()
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"handler": "tensor_classifier.py"}}))
    (folder / "tensor_classifier.py").write_bytes(handler_file("tensor_classifier").read_bytes())
    model = {"name": "small", "handler": "tensor_classifier", "input": {"shape": SHAPE}, "weights": weights}
    (folder / "slotwise.json").write_text(json.dumps({"model": model, "profiles": {}}))
    return folder


def test_mates_change_no_bit_on_any_engine(tmp_path: Path) -> None:
    net = network()
    torch.jit.script(net).save(str(tmp_path / "model.pt"))
    axis = ({0: torch.export.Dim("batch", min=1, max=64)},)
    example = (torch.rand(2, *SHAPE),)
    torch.onnx.export(net, example, tmp_path / "model.onnx", dynamic_shapes=axis, external_data=False, verbose=False)
    folder = archive(tmp_path, {"torchscript": "model.pt", "onnx": "model.onnx"})
    found = list(bit_for_bit.try_archive(folder, "small", bit_for_bit.MATES))
    assert {one.engine.partition(" ")[0] for one in found} == {"torch", "onnxruntime", "openvino"}
    for one in found:
        assert (one.differing, one.answers) == (0, 2 * 3 * 16), one
        assert one.between_shapes.relative < 1e-5, one


def test_one_that_mixes_rows_is_noticed(tmp_path: Path) -> None:
    axis = ({0: torch.export.Dim("batch", min=1, max=64)},)
    torch.export.save(torch.export.export(network(True), (torch.rand(4, *SHAPE),), dynamic_shapes=axis), tmp_path / "model.pt2")
    (found, *_) = bit_for_bit.try_archive(archive(tmp_path, {"export": "model.pt2"}), "small", (1, 3))
    assert found.differing > found.answers / 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", bit_for_bit.MODELS)
def test_mates_change_no_bit_of_a_given_model(model: str, tmp_path: Path) -> None:
    folder = extract(build(model, tmp_path / "store", bit_for_bit.WEIGHTS.get(model)), tmp_path / "model")
    found = list(bit_for_bit.try_archive(folder, model, bit_for_bit.FEW.get(model, bit_for_bit.MATES)))
    assert found
    assert [one for one in found if one.differing] == []
