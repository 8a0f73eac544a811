"""Build an ImageNet network for serving: what models/efficientnet, models/resnet18 and models/resnet152 have in common."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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

    Engines are compared on cuts of the model's examples. int8 is calibrated with `folder`/calibration, else with variations of
    those cuts and of the whole examples.
    """
    started = time.monotonic()
    spec = load_spec(folder)
    weights = weights or "imagenet"
    recipe, own = Recipe.of(spec.input.model_dump()), folder / "calibration"
    examples = [folder / name for name in spec.examples]
    pixels = pictures.cuts_of(examples, recipe, COMPARED)
    module = PixelNetwork(network(spec.options["network"], len(spec.labels), weights), spec.input.mean, spec.input.std)
    trained = weights != "none"
    if not trained:
        settle(module, torch.from_numpy(pictures.for_settling(pixels)))
    if trained and own.is_dir():
        calibration = pictures.from_folder(own, recipe, CALIBRATED)
    else:
        whole = np.stack([recipe(file.read_bytes()) for file in examples])
        calibration = pictures.for_calibration(np.concatenate([pixels, whole]), trained)
    note = Path(weights).name
    measured = export(spec, module, pixels, out, progress, trained=trained, note=note, calibration=calibration)
    return {"weights": note, "made_s": round(time.monotonic() - started, 1), **measured}
