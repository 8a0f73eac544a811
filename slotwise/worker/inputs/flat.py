"""Make a decoded picture what a model can take: upright, 8 bits, no transparency, in mode "RGB" or "L".

Steps that need a copy of the pixels work on strips of rows. So a picture of 50 megapixels takes the memory of itself, of its
result and of a few megabytes, and not of several copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from slotwise.worker.slot_errors import UnsupportedMedia

STRIP_PIXELS = 1 << 18
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of a TIFF
LAYERED = ("RGBA", "LA", "PA", "RGBa", "La")
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright(picture: Image.Image, mode: str, bits: int = 8) -> Image.Image:
    """The first frame in `mode`, turned as EXIF says, with 16 bits brought to 8 and transparency laid on white.

    bits: of a pixel of a PNG, as its header has it. The orientation is read after decoding, because pillow turns a TIFF itself
    while it decodes it and then forgets the tag. Raises UnsupportedMedia for what cannot be brought to 8 bits.
    """
    picture.load()
    orientation = _orientation(picture)
    if picture.format == "PNG" and "transparency" in picture.info:
        _to_eight_bits(picture, bits)
    flat = _flat(picture, mode)
    if flat is not picture:
        picture.close()  # its memory is free before the turned copy is made
    return _turned(flat, orientation)


def turned_as(tagged: Image.Image, picture: Image.Image) -> Image.Image:
    """A picture that was decoded elsewhere, turned as the EXIF of `tagged` says, which is open and not decoded."""
    return _turned(picture, _orientation(tagged))


def _turned(picture: Image.Image, orientation: int) -> Image.Image:
    turn = TURNS.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    """EXIF's orientation, 1 (upright) where there is none or it cannot be read."""
    try:
        return int(picture.getexif().get(0x0112, 1))
    except Exception:
        return 1


def _to_eight_bits(picture: Image.Image, bits: int) -> None:
    """Bring the level that a PNG names as see-through to 8 bits, as pillow brings its pixels."""
    if bits in (16, 48):  # pillow keeps only the upper half of a colour, and others have the same
        raise UnsupportedMedia("a PNG of 16 bits with one see-through colour is not taken: save it with 8 bits")
    if picture.mode == "L":
        most = (1 << bits) - 1
        picture.info["transparency"] = (picture.info["transparency"] & most) * 255 // most


def _flat(picture: Image.Image, mode: str) -> Image.Image:
    if picture.mode == "F":
        raise UnsupportedMedia("pictures of floating-point numbers are not taken")
    if picture.format == "TIFF" and not _is_plain(picture):
        raise UnsupportedMedia(
            "a TIFF of signed numbers, or of grey in 12 or inverted 16 bits, is not taken: save it with 8 bits"
        )
    if picture.mode.startswith("I"):  # 16-bit grey; pillow's own conversion would clip it at 255
        lowest, brightest = _extremes(picture)
        if lowest < 0 or brightest > 65535:
            raise UnsupportedMedia("grey beyond 16 bits is not taken: save it with 8 bits")
        shift = 8 if brightest > 255 else 0  # some files keep 8 bits in 16
        return _in_strips(picture, mode, lambda strip: _eight_bits(strip, shift).convert(mode))
    if picture.mode in LAYERED or "transparency" in picture.info:
        return _in_strips(picture, mode, lambda strip: _on_white(strip).convert(mode))
    return picture if picture.mode == mode else picture.convert(mode)


def _is_plain(picture: Any) -> bool:
    """Whether a TIFF's numbers are what pillow hands on: it knows of no sign, and not which end is black, below 32 bits."""
    bits, signs = picture.tag_v2.get(BITS, (1,))[0], picture.tag_v2.get(SAMPLE_FORMAT, (1,))
    if not picture.mode.startswith("I"):
        return 2 not in signs
    return bits == 32 or (bits == 16 and 2 not in signs and picture.tag_v2.get(PHOTOMETRIC) != 0)


def _extremes(picture: Image.Image) -> tuple[int, int]:
    """The lowest and the highest number of grey. Of 32 bits without a sign the upper half is below 0."""
    ends = [(int(numbers.min()), int(numbers.max())) for numbers in (np.asarray(strip) for _, strip in _strips(picture))]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _strips(picture: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The picture in strips of at most STRIP_PIXELS (at least a row), each with the row where it starts."""
    width, height = picture.size
    rows = max(1, STRIP_PIXELS // width)
    for top in range(0, height, rows):
        yield top, picture.crop((0, top, width, min(top + rows, height))) if rows < height else picture


def _in_strips(picture: Image.Image, mode: str, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """`change(strip)` of every strip, put together again."""
    whole = Image.new(mode, picture.size)
    for top, strip in _strips(picture):
        whole.paste(change(strip), (0, top))
    return whole


def _eight_bits(strip: Image.Image, shift: int) -> Image.Image:
    return Image.fromarray((np.asarray(strip) >> shift).astype(np.uint8))


def _on_white(strip: Image.Image) -> Image.Image:
    layered = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
