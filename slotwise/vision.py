"""What the picture models' make.py share: a network that takes pixels, and its files for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """A network on uint8 [b, h, w, c]: normalisation is part of the graph, so that an engine can fold and thread it."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("scale", (1 / (255 * torch.tensor(std))).reshape(1, -1, 1, 1))
        self.register_buffer("shift", (-torch.tensor(mean) / torch.tensor(std)).reshape(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:  # [b, h, w, c] -> [b, labels] logits
        result: Tensor = self.network(pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift)
        return result


def save_torchscript(module: nn.Module, pixels: Tensor, path: Path) -> None:
    """Trace `module` on `pixels` [b, h, w, c]; any b can be served afterwards."""
    with torch.inference_mode():
        torch.jit.trace(module.eval(), pixels, check_trace=False).save(str(path))


def save_onnx(module: nn.Module, pixels: Tensor, path: Path) -> None:
    """Write one self-contained ONNX file with a dynamic batch axis."""
    axis = {0: torch.export.Dim("b", min=1, max=4096)}
    program: Any = torch.onnx.export(
        module.eval(), (pixels,), input_names=["pixels"], output_names=["logits"], dynamic_shapes=(axis,), dynamo=True, verbose=False
    )
    program.save(str(path), external_data=False)
