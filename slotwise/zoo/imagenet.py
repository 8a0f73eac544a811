"""Build one of torchvision's ImageNet networks for serving: what models/resnet18 and models/resnet152 have in common."""

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

COUNT = 64  # pictures to calibrate and compare with


def make(folder: Path, out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write the weights that `folder`/model.toml names. weights: a checkpoint's path, "imagenet" (the default) or "none".

    Pictures in `folder`/calibration are used to calibrate int8 and to compare the engines, else cuts of two sample photos.
    """
    started, spec = time.monotonic(), load_spec(folder)
    weights = weights or "imagenet"
    recipe = Recipe.of(spec.input.model_dump())
    own = folder / "calibration"
    pixels = pictures.from_folder(own, recipe, 4 * COUNT) if own.is_dir() else pictures.from_photos(recipe, COUNT)
    module = PixelNetwork(network(spec.options["network"], len(spec.labels), weights), spec.input.mean, spec.input.std)
    trained = weights != "none"
    if not trained:
        settle(module, torch.from_numpy(pixels[:16]))
    measured = export(spec, module, pixels, out, progress, trained=trained, note=Path(weights).name)
    return {"weights": Path(weights).name, "made_s": round(time.monotonic() - started, 1), **measured}
