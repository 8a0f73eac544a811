"""A request body to pixels, without harm: whatever a picture is, it becomes uint8 [h, w, c] or one clear refusal.

Formats: JPEG, PNG, WebP, GIF, BMP, TIFF. Rotation by EXIF is applied, transparency is laid on white, 16 bits become 8, an
animation is its first frame. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is enough for `size_hint`.

    decode_rgb(body)            any picture, upright                           -> [h, w, 3]
    Recipe.of(input)(body)      what a model wants, by [input] of model.toml   -> [h, w, c]

Refusals: 400 not a picture, truncated or damaged; 413 too many bytes or pixels, or too slow to decode; 415 a kind of file
that is not taken.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from slotwise.worker.errors import BadRequest, SlotError, TooLarge, UnsupportedMedia
from slotwise.worker.inputs.ink import fit_ink

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 32 << 20
MAX_PIXELS = 50_000_000
MAX_SECONDS = 5.0
MAX_SCANS = 100  # a progressive JPEG passes over the whole picture once a scan; real ones have about ten
OTHER_KINDS = {
    b"%PDF": "a PDF",
    b"<svg": "an SVG drawing",
    b"<?xml": "XML",
    b"8BPS": "a Photoshop file",
    b"\x00\x00\x01\x00": "an icon",
}
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"avif": "AVIF"}
Image.MAX_IMAGE_PIXELS = None  # our own limit is checked before anything is decoded
warnings.filterwarnings("ignore", module="PIL")  # what a damaged file is about, its sender is told


class _Timed(io.BytesIO):
    """Pillow decodes block by block; a picture that takes too long gets no further block."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.stop_at = time.monotonic() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self.stop_at:
            raise TooLarge(f"the picture takes longer than {MAX_SECONDS:g} s to decode")
        return super().read(size)


def decode_rgb(
    body: bytes, *, size_hint: int | None = None, max_pixels: int | None = None, max_bytes: int = MAX_BYTES
) -> Pixels:
    """The picture as uint8 [h, w, 3], upright.

    size_hint: a JPEG may be decoded smaller, as long as neither side falls below this. Raises BadRequest, TooLarge,
    UnsupportedMedia.
    """
    return np.asarray(_open(body, "RGB", size_hint, max_pixels or MAX_PIXELS, max_bytes))


@dataclass(frozen=True)
class Recipe:
    """From a body to one item of the model: what training and serving share.

    channels: 1 (greyscale) or 3. height, width: of the item. resize: the shorter side before the central cut of height x
    width (None: the whole picture is squeezed to height x width). ink: a drawn sign, found on its paper (see ink.py).
    """

    channels: int
    height: int
    width: int
    resize: int | None = None
    interpolation: str = "bilinear"
    ink: bool = False
    max_pixels: int = MAX_PIXELS

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Recipe:
        """The recipe in [input] of a model.toml."""
        channels, height, width = described["shape"]
        resize, ink, limit = described.get("resize"), described.get("ink", False), described.get("max_pixels") or MAX_PIXELS
        return cls(channels, height, width, resize, described.get("interpolation", "bilinear"), ink, limit)

    def __call__(self, body: bytes) -> Pixels:
        """uint8 [height, width, channels]; raises what decode_rgb raises."""
        mode = "L" if self.channels == 1 else "RGB"
        hint = 256 if self.ink else self.resize or max(self.height, self.width)
        picture = _open(body, mode, hint, self.max_pixels, MAX_BYTES)
        pixels = fit_ink(picture, self.height, self.width) if self.ink else np.asarray(self.fit(picture))
        return pixels.reshape(self.height, self.width, self.channels)

    def fit(self, picture: Image.Image) -> Image.Image:
        """Resize the shorter side and cut out the centre, computing only the pixels that stay."""
        filters = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
        resampling = filters.get(self.interpolation, Image.Resampling.BILINEAR)
        if self.resize is None:
            return picture.resize((self.width, self.height), resampling)
        w, h = picture.size
        scale = max(self.resize, self.width, self.height) / min(w, h)
        left, top = (w - self.width / scale) / 2, (h - self.height / scale) / 2
        box = (left, top, left + self.width / scale, top + self.height / scale)
        return picture.resize((self.width, self.height), resampling, box)


def _open(body: bytes, mode: str, size_hint: int | None, max_pixels: int, max_bytes: int) -> Image.Image:
    """The decoded picture in mode "RGB" or "L"; every way in which a file can be bad is one SlotError."""
    if not body:
        raise BadRequest("the body is empty: send a picture")
    if len(body) > max_bytes:
        raise TooLarge(f"the picture has {len(body)} bytes, at most {max_bytes} are taken")
    try:
        with Image.open(_Timed(body), formats=FORMATS) as picture:
            return _decode(picture, body, mode, size_hint, max_pixels)
    except (SlotError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise _stranger(body) from None
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise BadRequest("the picture is truncated or damaged") from error


def _decode(picture: Image.Image, body: bytes, mode: str, size_hint: int | None, max_pixels: int) -> Image.Image:
    width, height = picture.size
    if width * height > max_pixels:
        raise TooLarge(f"the picture has {width} x {height} pixels, at most {max_pixels} are taken")
    if picture.format == "JPEG":
        if "progressive" in picture.info and body.count(b"\xff\xda") > MAX_SCANS:
            raise TooLarge(f"the picture has more than {MAX_SCANS} scans")
        if size_hint:
            picture.draft(mode if picture.mode in ("L", "RGB") else picture.mode, (size_hint, size_hint))
    turn = TURNS.get(_orientation(picture))
    flat = _flat(picture, mode)
    return flat if turn is None else flat.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    """EXIF's orientation, 1 (upright) where there is none or it cannot be read."""
    try:
        return int(picture.getexif().get(0x0112, 1))
    except Exception:
        return 1


def _flat(picture: Image.Image, mode: str) -> Image.Image:
    """The first frame in `mode`: 16 bits brought to 8, transparency laid on white."""
    if picture.mode == "F":
        raise UnsupportedMedia("pictures of floating-point numbers are not taken")
    if picture.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it at 255
        deep = np.asarray(picture, np.int64).clip(0, 65535)
        return Image.fromarray((deep >> 8).astype(np.uint8) if deep.max() > 255 else deep.astype(np.uint8)).convert(mode)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        layered = picture.convert("RGBA")
        white = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(white, layered).convert(mode)
    return picture.convert(mode)  # a copy, or the decoded picture itself where it has the mode


def _stranger(body: bytes) -> SlotError:
    """What to say about a body that is none of FORMATS."""
    start = body[:16].lstrip()
    kind = next((kind for magic, kind in OTHER_KINDS.items() if start.startswith(magic)), None)
    if body[4:8] == b"ftyp":
        kind = BRANDS.get(body[8:12], "a video")
    taken = "send a JPEG, PNG, WebP, GIF, BMP or TIFF"
    return UnsupportedMedia(f"this is {kind}: {taken}") if kind else BadRequest(f"the body is not a picture: {taken}")
