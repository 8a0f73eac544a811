"""Export a picture network for every engine, and compare the engines: what the picture models' make.py share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from slotwise.model_spec import ModelSpec
from slotwise.worker.engines.choice import installed
from slotwise.zoo import agreement, int8_weights, reproducible
from slotwise.zoo.int8_weights import quiet

if TYPE_CHECKING:
    from rich.progress import Progress


class PixelNetwork(nn.Module):  # type: ignore[misc]
    """A network that takes pixels, uint8 [b, h, w, c].

    Normalisation is part of the graph, so that an engine can fold it into the first layer and run it in its threads.
    """

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("scale", (1 / (255 * torch.tensor(std))).reshape(1, -1, 1, 1))
        self.register_buffer("shift", (-torch.tensor(mean) / torch.tensor(std)).reshape(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:  # [b, h, w, c] -> [b, labels] logits
        result: Tensor = self.network(pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift)
        return result


@dataclass(frozen=True)
class Source:
    """What is exported: the network, two items [2, h, w, c] to trace it with, and what int8 is made from.

    exact: how many convolutions from the front int8 leaves in fp32. onnx: the graph that it starts from.
    """

    module: nn.Module
    items: Tensor
    calibration: Any
    exact: int
    onnx: Path


def export(
    spec: ModelSpec,
    module: nn.Module,
    pixels: Any,
    out: Path,
    progress: Progress,
    *,
    trained: bool,
    note: str = "",
    calibration: Any = None,
) -> dict[str, Any]:
    """Write the weights that model.toml names, and compare every engine with `module` in eager fp32.

    pixels, calibration: uint8 [n, h, w, c], to compare on and to calibrate int8 with (the same ones where there are no others).
    int8 is left out where nncf is not installed; what it would be made from is kept for a later build. Writes facts.json
    beside the weights.
    """
    weights = {key: value for key, value in spec.weights.model_dump().items() if value}
    module = module.eval()
    calibration = pixels if calibration is None else calibration
    if not installed("nncf") and weights.pop("openvino_int8", None):
        int8_weights.postpone(out, calibration)
    onnx = out / weights.get("onnx", "")
    source = Source(module, torch.from_numpy(pixels[:2]), calibration, spec.options.get("int8_exact", 0), onnx)
    task = progress.add_task(f"{spec.name}: exporting", total=len(weights) + 1)
    for key, name in weights.items():
        WRITERS[key](source, out / name)
        progress.advance(task)
    (out / "facts.json").write_text(json.dumps({"untrained": not trained, "weights": note}, indent=2), "utf-8")
    with torch.inference_mode():
        measured = agreement.check(out, weights, lambda rows: module(torch.from_numpy(rows)), pixels, trained)
    progress.advance(task)
    for engine, verdict in measured["engines"].items():
        if not verdict["passed"]:
            progress.console.print(f"{spec.name}: {engine} differs: {verdict['why']}", highlight=False, markup=False)
    return measured


def _save_torchscript(source: Source, path: Path) -> None:
    with torch.inference_mode(), quiet():
        reproducible.forget_classes()
        torch.jit.trace(source.module, source.items, check_trace=False).save(str(path))
    reproducible.torchscript(path)


def _save_export(source: Source, path: Path) -> None:
    axis = {0: torch.export.Dim("b", min=1, max=4096)}
    with quiet():
        program = torch.export.export(source.module, (source.items,), dynamic_shapes=(axis,))
        reproducible.program(program)
        torch.export.save(program, str(path))


def _save_onnx(source: Source, path: Path) -> None:
    axes: Any = ({0: torch.export.Dim("b", min=1, max=4096)},)
    names = {"input_names": ["pixels"], "output_names": ["logits"]}
    with quiet():
        program: Any = torch.onnx.export(
            source.module, (source.items,), dynamic_shapes=axes, dynamo=True, verbose=False, **names
        )
        program.save(str(path), external_data=False)
    reproducible.onnx(path)


def _save_openvino_int8(source: Source, path: Path) -> None:
    int8_weights.write(source.onnx, path, source.calibration, source.exact)


WRITERS = {
    "torchscript": _save_torchscript,
    "export": _save_export,
    "onnx": _save_onnx,
    "openvino_int8": _save_openvino_int8,
}


def classes_right(module: nn.Module, pixels: Any, targets: Any) -> float:
    """The share of pictures whose best label is the target. pixels: uint8 [n, h, w, c]; targets: int [n]."""
    with torch.inference_mode():
        best = [module(rows).argmax(1).numpy() for rows in torch.from_numpy(pixels).split(64)]
    return float((np.concatenate(best) == targets).mean())
