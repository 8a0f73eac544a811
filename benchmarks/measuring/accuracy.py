"""EfficientNet-Lite0 on every engine and precision: labels of real photos, agreement with fp32, speed. Needs scikit-image."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring.about import ROOT
from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.console import say
from slotwise.errors import SlotwiseError, missing_package
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.worker.engines import load_engine
from slotwise.worker.engines.processor import has_bf16
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.environment.settings import Settings
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.labels import probabilities
from slotwise.zoo import agreement, pictures
from slotwise.zoo.start import start_of

MODEL = ROOT / "models" / "efficientnet"
JUDGED = ("chelsea.png", "coffee.png", "rocket.jpg", "camera.png", "motorcycle_left.png")  # none of them calibrates int8
CALIBRATING = ("astronaut.png", "coins.png", "retina.jpg")  # some of those that do
CUTS = 240
BATCH = 8


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every engine that is installed, in turn, `options.rounds` times."""
    folder = photo_folder()
    spec = load_spec(MODEL)
    recipe = Recipe.of(spec.input.model_dump())
    whole = {name: np.array(recipe((folder / name).read_bytes())) for name in (*JUDGED, *CALIBRATING)}
    cuts, expected = judged_cuts(spec)
    (work / "store").mkdir()
    archive = extract(build("efficientnet", work / "store"), work / "model")
    weights = spec.weights.model_dump(exclude_none=True)
    engines = {
        f"{name} {precision}": load_engine(
            archive, Settings(engine=name, precision=precision, threads=available_cores(), model={"weights": weights})
        )
        for name, precision in agreement.CANDIDATES
        if precision != "bf16" or has_bf16()
    }
    rows = []
    for name, engine in engines.items():
        say(name)
        observed = np.concatenate([engine(cuts[i : i + BATCH]) for i in range(0, CUTS, BATCH)])
        labels = {}
        for photo, pixels in whole.items():
            likely = probabilities(engine(pixels[None]))[0]
            labels[photo] = [spec.labels[int(likely.argmax())], round(float(likely.max()), 4)]
        compared = agreement.compare(expected, observed, name.partition(" ")[2], trained=True)
        if not compared["passed"]:
            raise SlotwiseError(f"{name}: {compared['why']}", "no figure is kept of an engine that a build would refuse")
        rows.append({"system": name, **compared, "labels": labels, "rounds": [], "latency_ms": []})
    for _ in range(options.rounds):
        for row, engine in zip(rows, engines.values(), strict=True):
            row["rounds"].append(round(BATCH / _median_s(engine, cuts[:BATCH], options.seconds / 2), 1))
            row["latency_ms"].append(round(1000 * _median_s(engine, cuts[:1], options.seconds / 2), 2))
    return {"cuts": CUTS, "photos": JUDGED, "calibrating": CALIBRATING, "threads": available_cores(), "rows": rows}


def judged_cuts(spec: ModelSpec) -> tuple[Any, Any]:
    """Cuts of the photos that are judged, [CUTS, ...], and what the network gives for them in eager fp32 on the CPU."""
    cuts = pictures.cuts_of([photo_folder() / name for name in JUDGED], Recipe.of(spec.input.model_dump()), CUTS)
    module = start_of(spec, None).module(len(spec.labels))
    with torch.inference_mode():
        return cuts, np.concatenate([module(rows).numpy() for rows in torch.from_numpy(cuts).split(BATCH)])


def photo_folder() -> Path:
    """scikit-image's folder of photos."""
    try:
        import skimage
    except ImportError as error:
        raise missing_package("skimage", "this measurement") from error
    return Path(skimage.__file__).parent / "data"


def _median_s(engine: Any, rows: Any, seconds: float) -> float:
    """The median time of one call, over about that many seconds."""
    timed: list[float] = []
    until = time.perf_counter() + seconds
    engine(rows)
    while time.perf_counter() < until or not timed:
        started = time.perf_counter()
        engine(rows)
        timed.append(time.perf_counter() - started)
    return float(np.median(timed))
