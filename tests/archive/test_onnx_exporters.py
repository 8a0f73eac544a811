"""Graphs with a batch fixed at 1 as PyTorch's two exporters write them, by every way in which networks flatten their rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.network.onnx_graph import prepare
from slotwise.model_spec import ModelSpec
from slotwise.worker.engines import load_engine
from slotwise.worker.environment.settings import Settings

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FLATTENED: dict[str, Callable[[Any], Any]] = {
    "view(x.size(0), -1)": lambda x: x.view(x.size(0), -1),
    "view(1, -1)": lambda x: x.view(1, -1),
    "view(-1, n)": lambda x: x.view(-1, 144),
    "reshape(shape[0], n)": lambda x: x.reshape(x.shape[0], 144),
    "flatten(x, 1)": lambda x: torch.flatten(x, 1),
}
ENGINES = ("onnxruntime", "openvino")


def network(flattened: Callable[[Any], Any]) -> Any:
    """A convolution, ReLU, the flattening, and a linear layer, as the classic MNIST networks have them."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(144, 10)

        def forward(self, x: Any) -> Any:
            return self.linear(flattened(torch.relu(self.conv(x))))

    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("form", list(FLATTENED))
def test_its_batch_becomes_dynamic_and_every_row_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, dynamo: bool
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    source, net = tmp_path / "old.onnx", network(FLATTENED[form])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, 1, 8, 8),), source, dynamo=dynamo, external_data=False, verbose=False)
    spec = ModelSpec.model_validate(
        {"name": "old", "handler": "tensor_classifier", "input": {"shape": [1, 8, 8]}, "weights": {"onnx": "old.onnx"}}
    )
    folder, facts = prepare(spec, source)
    assert facts["batch"] == "made dynamic"
    assert folder is not None
    rows = np.random.default_rng(0).normal(size=(5, 1, 8, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = [net(torch.from_numpy(row[None])).numpy()[0] for row in rows]
    for engine in ENGINES:
        outputs = load_engine(folder, Settings(engine=engine, precision="fp32", model={"weights": {"onnx": "old.onnx"}}))(rows)
        assert np.allclose(outputs, expected, atol=1e-4)
