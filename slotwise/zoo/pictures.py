"""Find pictures to calibrate int8 with and to compare engines on.

The ones that calibrate are not the ones that judge. A build compares engines on cuts of the model's examples or on validation
pictures, and a worker that loads int8 compares it on the whole examples, on noise and on an empty picture. int8 is calibrated
with a folder of the model's own, or with `for_calibration`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.slot_errors import SlotError

if TYPE_CHECKING:
    from PIL.Image import Image

BRIGHTNESS = (1.0, 0.8, 1.25)
SETTLED = 16
CALIBRATING_NOISE = 8
NOISE_SEED = 1000  # engines/samples.py takes the first few numbers for what it judges on


def from_folder(folder: Path, recipe: Recipe, count: int) -> np.ndarray[Any, Any]:
    """The first `count` pictures below `folder`, as the model gets them: uint8 [n, h, w, c]; what is no picture is left out.

    Fewer than a quarter of `count` are cut up until there are `count`.
    """
    items: list[Any] = []
    files: list[Path] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if len(items) == count:
            break
        with suppress(SlotError):
            items.append(recipe(file.read_bytes()))
            files.append(file)
    if not items:
        raise SlotwiseError(f"there are no pictures in {folder}", "put some JPEG or PNG files there")
    return np.stack(items) if 4 * len(items) >= count else cuts_of(files, recipe, count)


def from_photos(recipe: Recipe, count: int) -> np.ndarray[Any, Any]:
    """`count` different cuts of scikit-learn's two sample photos: uint8 [count, h, w, c], the same ones every time."""
    from PIL import Image  # noqa: PLC0415  slow to import
    from sklearn.datasets import load_sample_images  # noqa: PLC0415  heavy, optional

    return cuts([Image.fromarray(photo) for photo in load_sample_images().images], recipe, count)


def cuts_of(files: Sequence[Path], recipe: Recipe, count: int) -> np.ndarray[Any, Any]:
    """`count` different cuts of picture files, in turn: uint8 [count, h, w, c], the same ones every time."""
    from PIL import Image  # noqa: PLC0415  slow to import

    return cuts([Image.fromarray(decode_rgb(file.read_bytes())) for file in files], recipe, count)


def cuts(photos: Sequence[Image], recipe: Recipe, count: int) -> np.ndarray[Any, Any]:
    """`count` square cuts of the photos in turn, of 30 to 100% of their shorter side, half of them mirrored."""
    from PIL import ImageOps  # noqa: PLC0415  slow to import

    random = np.random.default_rng(0)
    items = []
    for i in range(count):
        photo = photos[i % len(photos)]
        side = int(random.uniform(0.3, 1.0) * min(photo.size))
        left, top = (int(random.uniform(0, whole - side)) for whole in photo.size)
        cut = photo.crop((left, top, left + side, top + side))
        if random.random() < 0.5:
            cut = ImageOps.mirror(cut)
        target = io.BytesIO()
        cut.save(target, "JPEG", quality=90)
        items.append(recipe(target.getvalue()))
    return np.stack(items)


def for_calibration(items: np.ndarray[Any, Any], trained: bool) -> np.ndarray[Any, Any]:
    """Pictures like `items` but none of them, to calibrate int8 with: uint8 [n, h, w, c], the same ones every time.

    They are mirrored, and of three one is darker and one brighter. Untrained weights get noise as well: they serve load tests,
    whose bodies may be anything. Trained ones do not, because noise would take levels from what photos need.
    """
    brightness = np.resize(BRIGHTNESS, len(items)).reshape(-1, *[1] * (items.ndim - 1))
    varied = np.clip(items[:, :, ::-1] * brightness, 0, 255).astype(np.uint8)
    return varied if trained else np.concatenate([varied, noise(items, CALIBRATING_NOISE)])


def for_settling(items: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pictures whose statistics an untrained network gets: the first 16 of `items`, and as much noise.

    With the statistics of photos alone, noise gave a ResNet-18 logits ten times as large as any photo.
    """
    return np.concatenate([items[:SETTLED], noise(items, SETTLED)])


def noise(items: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """`count` pictures of random pixels, as large as `items`; others than those a worker compares engines on."""
    return np.random.default_rng(NOISE_SEED).integers(0, 256, (count, *items.shape[1:]), np.uint8)


def sample_jpeg(width: int, height: int, quality: int = 90) -> bytes:
    """scikit-learn's photo of a temple in China as a JPEG of width x height."""
    from PIL import Image  # noqa: PLC0415  slow to import
    from sklearn.datasets import load_sample_image  # noqa: PLC0415  heavy, optional

    target = io.BytesIO()
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((width, height), Image.Resampling.BICUBIC)
    photo.save(target, "JPEG", quality=quality)
    return target.getvalue()
