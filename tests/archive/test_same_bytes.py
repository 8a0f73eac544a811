"""Two builds of a given model are the same file: no path, thread count, hash seed or earlier build of the machine is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.console import progress
from slotwise.model_spec import ModelSpec

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
MODELS = ["digits", "mnist"]
BUILD = """
import sys
from pathlib import Path
from slotwise.archive.build import build
for model in sys.argv[2:]:
    build(model, Path(sys.argv[1]))
"""


def built(place: Path, models: list[str], **environ: str) -> Path:
    """The models, trained anew by a process of its own, one after the other."""
    place.mkdir()
    environ = {**os.environ, "SLOTWISE_HOME": str(place / "home"), "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(place / "store"), *models], cwd=place, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return place / "store"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_digits_and_mnist_are_the_same_twice(tmp_path: Path) -> None:
    assert_same_twice(tmp_path, {model: model for model in MODELS})


def assert_same_twice(tmp_path: Path, models: dict[str, str]) -> None:
    """Build the models (a name: what is to be built) twice, with all else different."""
    named = list(models.values())
    one = built(tmp_path / "one", named, OMP_NUM_THREADS="1", PYTHONHASHSEED="1")
    other = built(tmp_path / "other", named[::-1], OMP_NUM_THREADS="2", PYTHONHASHSEED="2", TZ="Asia/Tokyo")
    for model in models:
        with zipfile.ZipFile(one / f"{model}.mar") as first, zipfile.ZipFile(other / f"{model}.mar") as second:
            assert first.namelist() == second.namelist()
            assert "engines.json" not in first.namelist()
            differing = [name for name in first.namelist() if first.read(name) != second.read(name)]
        assert not differing
        content = (one / f"{model}.mar").read_bytes()
        assert content == (other / f"{model}.mar").read_bytes()
        assert str(ROOT).encode() not in content
        assert "engines" in json.loads((one / f"{model}.report.json").read_text())["measured"]


def test_what_exporters_write_depends_on_the_network_alone(tmp_path: Path) -> None:
    """Every form, twice in one process, with another export between: no counter and no path of this machine is in it."""
    from torch import nn

    from slotwise.zoo import vision

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)]
    module = vision.PixelNetwork(nn.Sequential(*layers), [0.5] * 3, [0.25] * 3).eval()
    forms = {"torchscript": "model.pt", "export": "model.pt2", "onnx": "model.onnx", "openvino_int8": "int8.xml"}
    spec = ModelSpec.model_validate({"name": "small", "handler": "image_classifier", "weights": forms})
    pixels: Any = np.random.default_rng(0).integers(0, 255, (16, 16, 16, 3), np.uint8)
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        with progress() as shown:
            vision.export(spec, module, pixels, tmp_path / place, shown, trained=False)
    for file in (tmp_path / "one").iterdir():
        content = file.read_bytes()
        assert content == (tmp_path / "two" / file.name).read_bytes(), file.name
        parts = [content]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as source:
                parts = [source.read(name) for name in source.namelist()]
        assert not any(place.encode() in part for part in parts for place in (str(ROOT), sys.prefix)), file.name
