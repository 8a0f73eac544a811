"""What calibrates int8: an untrained network answers in it as in fp32, and what judges does not calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from slotwise.console import progress  # noqa: E402
from slotwise.model_spec import load_spec  # noqa: E402
from slotwise.worker import Settings  # noqa: E402
from slotwise.worker.engines import load_engine, samples  # noqa: E402
from slotwise.worker.engines.processor import has_int8  # noqa: E402
from slotwise.zoo import imagenet, pictures  # noqa: E402

SIDE = 48
DESCRIPTION = f"""
name = "small"
version = "1.0"
handler = "image_classifier"
labels = {[f"label {i}" for i in range(10)]}
examples = ["examples/photo.jpg"]
[input]
shape = [3, {SIDE}, {SIDE}]
resize = {SIDE + 8}
dtype = "uint8"
mean = [0.5, 0.5, 0.5]
std = [0.25, 0.25, 0.25]
[weights]
onnx = "model.onnx"
openvino_int8 = "int8.xml"
[options]
network = "edges"
"""


def edges(name: str, labels: int, weights: str) -> nn.Module:
    """A small network that sees edges, of which noise has many more than a photo: its logits were ten times as large."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, bias=False)
    with torch.no_grad():
        first.weight -= first.weight.mean(dim=(2, 3), keepdim=True)
    layers = [first, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, labels))
    with torch.no_grad():
        network[-1].weight *= 2
    return network.eval()


def test_an_untrained_network_is_served_in_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker refuses int8 whose answers for noise, or for an example, are not those of fp32."""
    pytest.importorskip("nncf")
    pytest.importorskip("openvino")
    if not has_int8():
        pytest.skip("this processor has no VNNI: sums of int8 saturate, so int8 differs from fp32")
    monkeypatch.setattr(imagenet, "network", edges)
    (tmp_path / "model.toml").write_text(DESCRIPTION, "utf-8")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "photo.jpg").write_bytes(pictures.sample_jpeg(320, 240))
    with progress() as bars:
        measured = imagenet.make(tmp_path, tmp_path, "none", bars)
    assert measured["engines"]["openvino-int8"]["passed"], measured
    model = load_spec(tmp_path).model_dump(mode="json", exclude_none=True)
    settings = Settings(engine="openvino", precision="int8", threads=1, model=model)
    assert load_engine(tmp_path, settings).precision == "int8"


@pytest.mark.parametrize("trained", [True, False])
def test_what_judges_does_not_calibrate(trained: bool) -> None:
    items: Any = np.random.default_rng(5).integers(0, 256, (9, 8, 8, 3), np.uint8)
    calibrating = pictures.for_calibration(items, trained)
    judging = [*items, *(samples.noise(items[0], seed) for seed in range(samples.NOISE_ITEMS))]
    assert len(calibrating) == len(items) + (0 if trained else pictures.CALIBRATING_NOISE)
    assert not {rows.tobytes() for rows in judging} & {rows.tobytes() for rows in calibrating}
    assert (calibrating == pictures.for_calibration(items, trained)).all()
