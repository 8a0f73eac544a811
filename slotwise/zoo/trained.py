"""Build a network that `slotwise train` has trained, with the preprocessing that its weights were validated with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo import pictures
from slotwise.zoo.networks import settle
from slotwise.zoo.start import Start, start_of
from slotwise.zoo.vision import export

if TYPE_CHECKING:
    from rich.progress import Progress

WEIGHTS, FACTS, KEPT = "weights.pt", "training.json", "validation.npz"
DIGEST = "weights_sha256"  # in FACTS, of the weights that it is about
COUNT = 64  # pictures to compare engines with where there are no validation pictures


def preprocessing(spec: ModelSpec, start: Start) -> dict[str, Any]:
    """Everything between a picture's bytes and the network: it must be the same in training and in serving."""
    described = spec.input.model_dump(mode="json", include={"shape", "resize", "interpolation", "ink"})
    return {**described, "mean": start.mean, "std": start.std}


def make(folder: Path, out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write the weights that `folder`/model.toml names. weights: a path, "none", or None for those trained here."""
    started, spec = time.monotonic(), load_spec(folder)
    if weights is None and not (folder / WEIGHTS).is_file():
        hint = f"`slotwise train {spec.name} --data FOLDER` trains it; `--weights none` builds an untrained one for load tests"
        raise SlotwiseError(f"the model {spec.name} is not trained yet", hint)
    start = start_of(spec, weights or str(folder / WEIGHTS))
    if weights is None:
        _check_training(folder, spec, start)
    module = start.module(len(spec.labels))
    if weights is None and (folder / KEPT).is_file():
        pixels = np.load(folder / KEPT)["pixels"]
    else:
        pixels = pictures.from_photos(Recipe.of(spec.input.model_dump()), COUNT)
    for i, name in enumerate(spec.examples):
        if not (folder / name).is_file():
            Image.fromarray(pixels[i * len(pixels) // len(spec.examples)]).save(out / name)
    if weights == "none":
        settle(module, torch.from_numpy(pictures.for_settling(pixels)))
    note, trained = Path(weights).name if weights else WEIGHTS, weights != "none"
    calibration = pictures.for_calibration(pixels, trained)
    measured = export(spec, module, pixels, out, progress, trained=trained, note=note, calibration=calibration)
    return {"weights": note, "made_s": round(time.monotonic() - started, 1), **measured}


def _check_training(folder: Path, spec: ModelSpec, start: Start) -> None:
    """Refuse to serve weights with other labels or another preprocessing than they were trained with, or another's figures."""
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    if facts.get(DIGEST) not in (None, file_sha256(folder / WEIGHTS)):
        raise SlotwiseError(f"{folder / FACTS} is about other weights than those beside it", "train again")
    trained = {"labels": facts["labels"], **facts["input"], "network": facts["network"]}
    now = {"labels": list(spec.labels), **preprocessing(spec, start), "network": start.network}
    for key in {**now, **trained}:
        if trained.get(key) != now.get(key):
            raise SlotwiseError(
                f"{folder / 'model.toml'} has another {key} than these weights were trained with",
                f"train again, or restore {json.dumps(trained.get(key))}",
            )
