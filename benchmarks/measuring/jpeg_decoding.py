"""What a JPEG takes to become an item: with pillow, with simplejpeg, and at 1/2, where both now decode at 3/8."""

from __future__ import annotations

import io
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from measuring.about import ROOT
from measuring.accuracy import JUDGED, photo_folder
from slotwise.model_spec import load_spec
from slotwise.worker.inputs import images, jpeg
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.zoo import agreement, pictures
from slotwise.zoo.start import start_of

RECIPE = Recipe(3, 224, 224, resize=256)
SIZES = {"720x720": (720, 720), "12 MP": (4000, 3000)}
CUTS = 120
SIDES = (690, 1020)  # of cuts that 3/8 makes smaller than 1/2 does, and not too small


def measure(options: Namespace) -> dict[str, Any]:
    """Milliseconds of processor time for one picture, in turns; and how far a smaller size moves labels and pixels."""
    rows = []
    for size, (width, height) in SIZES.items():
        body = pictures.sample_jpeg(width, height)
        systems: dict[str, Callable[[bytes], Any]] = {"pillow": with_pillow, "simplejpeg": RECIPE}
        if size == "720x720":
            systems = {"pillow, at 1/2": lambda body: with_pillow(body, 4), **systems}
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, decode in systems.items():
                times[name].append(round(timed(decode, body, options.seconds / 2), 3))
        rows += [{"picture": size, "system": name, "ms": statistics.median(t), "rounds": t} for name, t in times.items()]
    bodies = cuts()
    same = sum(bool((with_pillow(body) == RECIPE(body)).all()) for body in bodies)
    return {"rows": rows, "cuts": CUTS, "identical": same, "moved": moved(bodies)}


def with_pillow(body: bytes, eighths: int | None = None) -> Any:
    """The item on a machine without simplejpeg, decoded in so many eighths of its size where that is named."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(jpeg, "simplejpeg", None))
        if eighths:
            stack.enter_context(mock.patch.object(images, "eighths", return_value=eighths))
        return RECIPE(body)


def timed(decode: Callable[[bytes], Any], body: bytes, seconds: float) -> float:
    """The median milliseconds of processor time: what else runs on the machine hardly counts."""
    times = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        started = time.thread_time()
        decode(body)
        times.append((time.thread_time() - started) * 1000)
    return statistics.median(times)


def cuts() -> list[bytes]:
    """JPEGs of scikit-image's photos in the sizes where 3/8 would be taken; small photos are enlarged first."""
    random, bodies = np.random.default_rng(1), []
    for i in range(CUTS):
        photo = Image.fromarray(decode_rgb((photo_folder() / JUDGED[i % len(JUDGED)]).read_bytes()))
        enlarged = max(1.0, SIDES[0] / min(photo.size)) * random.uniform(1.0, 1.4)
        photo = photo.resize((round(photo.width * enlarged), round(photo.height * enlarged)), Image.Resampling.LANCZOS)
        side = int(random.uniform(SIDES[0], min(SIDES[1], *photo.size)))
        left, top = (int(random.uniform(0, whole - side)) for whole in photo.size)
        target = io.BytesIO()
        photo.crop((left, top, left + side, top + side)).save(target, "JPEG", quality=int(random.choice([75, 85, 95])))
        bodies.append(target.getvalue())
    return bodies


def moved(bodies: list[bytes]) -> dict[str, Any]:
    """EfficientNet-Lite0 on items decoded at 3/8 and at 1/2, against those of the whole picture."""
    spec = load_spec(ROOT / "models" / "efficientnet")
    module = start_of(spec, None).module(len(spec.labels)).eval()
    items = {eighths: np.stack([with_pillow(body, eighths) for body in bodies]) for eighths in (8, 4, 3)}
    with torch.inference_mode():
        logits = {
            eighths: np.concatenate([module(part).numpy() for part in torch.from_numpy(rows).split(8)])
            for eighths, rows in items.items()
        }
    return {name: differing(items, logits, pair) for name, pair in {"3_of_8": (8, 3), "4_of_8": (8, 4), "both": (4, 3)}.items()}


def differing(items: dict[int, Any], logits: dict[int, Any], pair: tuple[int, int]) -> dict[str, Any]:
    """How far the second of two sizes is from the first."""
    first, second = pair
    levels = float(np.abs(items[first].astype(int) - items[second]).mean())
    return {"mean_levels": round(levels, 2), **agreement.compare(logits[first], logits[second], "bf16", trained=True)}
