"""What a JPEG takes to become an item: with pillow, with simplejpeg, and with simplejpeg at 3/8, which pillow does not know."""

from __future__ import annotations

import io
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from measuring.about import ROOT
from measuring.accuracy import JUDGED, photo_folder
from slotwise.model_spec import load_spec
from slotwise.worker.inputs import jpeg
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.zoo import agreement, pictures
from slotwise.zoo.start import start_of

RECIPE = Recipe(3, 224, 224, resize=256)
SIZES = {"720x720": (720, 720), "12 MP": (4000, 3000)}
CUTS = 120
SIDES = (690, 1020)  # of cuts that 3/8 makes smaller than 1/2 does, and not too small


def measure(options: Namespace) -> dict[str, Any]:
    """Milliseconds of processor time for one picture, in turns; and how far 3/8 moves labels and pixels."""
    rows = []
    for size, (width, height) in SIZES.items():
        body = pictures.sample_jpeg(width, height)
        systems: dict[str, Callable[[bytes], Any]] = {"pillow": with_pillow, "simplejpeg": RECIPE}
        if size == "720x720":
            systems["simplejpeg at 3/8"] = at_three_eighths
        times: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, decode in systems.items():
                times[name].append(round(timed(decode, body, options.seconds / 2), 3))
        rows += [{"picture": size, "system": name, "ms": statistics.median(t), "rounds": t} for name, t in times.items()]
    return {"rows": rows, "identical": identical(), "three_eighths": moved(), "cuts": CUTS}


def with_pillow(body: bytes) -> Any:
    """The item on a machine without simplejpeg."""
    jpeg.simplejpeg, kept = None, jpeg.simplejpeg
    try:
        return RECIPE(body)
    finally:
        jpeg.simplejpeg = kept


def at_three_eighths(body: bytes) -> Any:
    """The item of a picture that is decoded at 3/8 of its size."""
    height, width, *_ = simplejpeg.decode_jpeg_header(body)
    least = {"min_width": -(-3 * width // 8), "min_height": -(-3 * height // 8)}
    return np.asarray(RECIPE.fit(Image.fromarray(simplejpeg.decode_jpeg(body, "RGB", **least))))


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


def identical() -> int:
    """How many of the cuts give the same item with pillow and with simplejpeg."""
    return sum(bool((with_pillow(body) == RECIPE(body)).all()) for body in cuts())


def moved() -> dict[str, Any]:
    """EfficientNet-Lite0 on items decoded at 3/8 against the same ones decoded at 1/2."""
    spec = load_spec(ROOT / "models" / "efficientnet")
    import torch

    module = start_of(spec, None).module(len(spec.labels)).eval()
    half, smaller = (np.stack([decode(body) for body in cuts()]) for decode in (RECIPE, at_three_eighths))
    with torch.inference_mode():
        logits = [
            np.concatenate([module(part).numpy() for part in torch.from_numpy(rows).split(8)]) for rows in (half, smaller)
        ]
    levels = float(np.abs(half.astype(int) - smaller).mean())
    return {"mean_levels": round(levels, 2), **agreement.compare(*logits, "bf16", trained=True)}
