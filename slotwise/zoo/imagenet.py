"""Build an ImageNet network for serving: what models/efficientnet, models/resnet18 and models/resnet152 have in common."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slotwise.model_spec import load_spec
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo import pictures
from slotwise.zoo.networks import network, settle
from slotwise.zoo.vision import PixelNetwork, export

if TYPE_CHECKING:
    from rich.progress import Progress

COMPARED = 64  # cuts of the model's examples to compare the engines with
CALIBRATED = 256  # pictures to calibrate int8 with, where the model has a folder of them


def make(folder: Path, out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write the weights that `folder`/model.toml names. weights: a checkpoint's path, "imagenet" (the default) or "none".

    Engines are compared on cuts of the model's examples; int8 is calibrated with `folder`/calibration, else with those cuts.
    """
    started = time.monotonic()
    spec = load_spec(folder)
    weights = weights or "imagenet"
    recipe, own = Recipe.of(spec.input.model_dump()), folder / "calibration"
    pixels = pictures.cuts_of([folder / name for name in spec.examples], recipe, COMPARED)
    calibration = pictures.from_folder(own, recipe, CALIBRATED) if own.is_dir() else pixels
    module = PixelNetwork(network(spec.options["network"], len(spec.labels), weights), spec.input.mean, spec.input.std)
    trained = weights != "none"
    if not trained:
        settle(module, torch.from_numpy(pixels[:16]))
    note = Path(weights).name
    measured = export(spec, module, pixels, out, progress, trained=trained, note=note, calibration=calibration)
    return {"weights": note, "made_s": round(time.monotonic() - started, 1), **measured}
