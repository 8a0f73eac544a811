"""Decode a picture safely: any body becomes pixels, uint8 [h, w, c], or one clear refusal.

Formats: JPEG, PNG, WebP, GIF, BMP, TIFF. Rotation by EXIF is applied, transparency is laid on white, 16 bits become 8, and of
an animation the first frame is taken. A large JPEG is decoded at 4, 3, 2 or 1 eighths of its size where that is enough
for `size_hint` (jpeg.py).

    decode_rgb(body)            the whole picture, upright                                   -> [h, w, 3]
    Recipe.of(input)(body)      the picture as [input] of model.toml describes it            -> [h, w, c]
    cost(body)                  what decoding will take, estimated before it starts

Refusals: 400 for what is not a picture, truncated or damaged; 413 for too many bytes or pixels, or too much time; 415 for a
kind of file that is not accepted.
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
from PIL.JpegImagePlugin import JpegImageFile

from slotwise.worker.budget import Cost
from slotwise.worker.inputs.decode_cost import REFUSED, eighths, estimate
from slotwise.worker.inputs.flat import turned_as, upright
from slotwise.worker.inputs.ink import fit_ink
from slotwise.worker.inputs.jpeg import decode_jpeg, draft
from slotwise.worker.inputs.no_picture import refusal
from slotwise.worker.inputs.picture_header import PictureHeader, may_be_picture, read_header
from slotwise.worker.slot_errors import BadRequest, SlotError, TooLarge

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 32 << 20
MAX_PIXELS = 50_000_000
MAX_SECONDS = 5.0
MAX_SCANS = 100  # a JPEG's decoder passes over the whole picture once a scan; real ones have about ten
MAX_READS = 100_000  # each is a few microseconds of Python: chunks, strips, blocks; real files have hundreds
# The sender of a damaged file gets an error, so the log needs no warning. Pillow's warning of bombs is of another category.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class _LimitedReader(io.BytesIO):
    """The body as a file. It refuses to be read on where decoding takes too long, or makes too many small reads."""

    def __init__(self, body: bytes, header: PictureHeader | None) -> None:
        super().__init__(body)
        self.stop_at = time.monotonic() + MAX_SECONDS
        self.reads_left = len(body) + MAX_READS if header and header.coding == "rle" else MAX_READS  # rle: one for each run

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise TooLarge(f"the picture is made of more than {MAX_READS} pieces")
        if time.monotonic() > self.stop_at:
            raise TooLarge(f"the picture takes longer than {MAX_SECONDS:g} s to decode")
        return super().read(size)


def decode_rgb(
    body: bytes, *, size_hint: int | None = None, max_pixels: int | None = None, max_bytes: int = MAX_BYTES
) -> Pixels:
    """Decode a picture to uint8 [h, w, 3], upright.

    size_hint: a JPEG may be decoded smaller, as long as neither side falls below this number of pixels. max_pixels: None
    means MAX_PIXELS. Raises BadRequest, TooLarge or UnsupportedMedia.
    """
    return np.asarray(_open(body, "RGB", size_hint, max_pixels or MAX_PIXELS, max_bytes))


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes one item of a model, the same in training and in serving.

    channels: 1 (greyscale) or 3. height, width: of the item in pixels. resize: the shorter side before height x width are cut
    out of the middle; None: the whole picture is squeezed to height x width. ink: the picture is a drawn sign, which is found
    on its paper (see ink.py).
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
        return cls(
            channels,
            height,
            width,
            resize=described.get("resize"),
            interpolation=described.get("interpolation", "bilinear"),
            ink=described.get("ink", False),
            max_pixels=described.get("max_pixels") or MAX_PIXELS,
        )

    @property
    def mode(self) -> str:
        """Pillow's name for the kind of picture that the model takes."""
        return "L" if self.channels == 1 else "RGB"

    @property
    def size_hint(self) -> int:
        """How small a side may become while a JPEG is decoded, in pixels."""
        return 256 if self.ink else self.resize or max(self.height, self.width)

    def cost(self, body: bytes, size: int | None = None) -> Cost | None:
        """What `self(body)` will take, from the header alone. Raises nothing.

        size: `body` is only the beginning of a picture of at most so many bytes; None where it does not tell.
        """
        return cost(body, size_hint=self.size_hint, max_pixels=self.max_pixels, mode=self.mode, size=size)

    def __call__(self, body: bytes) -> Pixels:
        """uint8 [height, width, channels]; raises what decode_rgb raises."""
        picture = _open(body, self.mode, self.size_hint, self.max_pixels, MAX_BYTES)
        pixels = fit_ink(picture, self.height, self.width) if self.ink else np.asarray(self.fit(picture))
        return pixels.reshape(self.height, self.width, self.channels)

    def fit(self, picture: Image.Image) -> Image.Image:
        """Resize the picture and cut out its middle in one step, so that only pixels that stay are computed."""
        filters = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
        resampling = filters.get(self.interpolation, Image.Resampling.BILINEAR)
        if self.resize is None:
            return picture.resize((self.width, self.height), resampling)
        w, h = picture.size
        scale = max(self.resize, self.width, self.height) / min(w, h)
        left, top = max(0, (w - self.width / scale) / 2), max(0, (h - self.height / scale) / 2)  # rounding may fall below 0
        box = (left, top, min(w, left + self.width / scale), min(h, top + self.height / scale))
        return picture.resize((self.width, self.height), resampling, box)


def cost(
    body: bytes, *, size_hint: int | None = None, max_pixels: int = MAX_PIXELS, mode: str = "RGB", size: int | None = None
) -> Cost | None:
    """Estimate what decoding a body will take, from its header alone. Raises nothing; a body that is refused costs REFUSED.

    size: `body` is only the beginning of a picture of at most so many bytes; None where it does not tell.
    """
    if (size or len(body)) > MAX_BYTES:
        return REFUSED
    header = read_header(body, whole=size is None)
    if header is None and size is not None and may_be_picture(body):
        return None
    if header is None or header.pixels > max_pixels or header.scans > MAX_SCANS:
        return REFUSED
    return estimate(header, size or len(body), size_hint, mode)


def _open(body: bytes, mode: str, size_hint: int | None, max_pixels: int, max_bytes: int) -> Image.Image:
    """The decoded picture in mode "RGB" or "L". Raises a SlotError for whatever is wrong with the file."""
    if not body:
        raise BadRequest("the body is empty: send a picture")
    if len(body) > max_bytes:
        raise TooLarge(f"the picture has {len(body)} bytes, at most {max_bytes} are taken")
    header = read_header(body)
    if header is not None:
        _within_limits(header, max_pixels)
    try:
        quick = decode_jpeg(body, header, mode, eighths(header, size_hint)) if header else None
        if quick is not None and header is not None and not header.tagged:
            return quick
        picture = _opened(body, header)
        if header is None or sorted(picture.size) != sorted((header.width, header.height)):
            raise BadRequest("the picture is damaged: its header contradicts itself")
        if quick is not None:
            return turned_as(picture, quick)
        if size_hint and isinstance(picture, JpegImageFile):
            draft(picture, mode, eighths(header, size_hint))
        return upright(picture, mode, header.bits)
    except (SlotError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLarge("the picture has more pixels than pillow takes") from error
    except UnidentifiedImageError:
        raise refusal(body) from None
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise BadRequest("the picture is truncated or damaged") from error


def _opened(body: bytes, header: PictureHeader | None) -> Image.Image:
    """The picture, not yet decoded. Raises whatever pillow raises.

    Pillow's own limit of pixels belongs to the whole process, so to the author's code as well: it is never changed here. Where
    a model takes larger pictures, the header has been checked against its limit, and pillow's class is called without `open`.
    """
    file = _LimitedReader(body, header)
    if header is None or header.pixels <= (Image.MAX_IMAGE_PIXELS or header.pixels):
        return Image.open(file, formats=(header.format,) if header else FORMATS)
    Image.init()
    open_class, _ = Image.OPEN[header.format]
    return open_class(file, "")


def _within_limits(header: PictureHeader, max_pixels: int) -> None:
    if header.width * header.height > max_pixels:
        raise TooLarge(f"the picture has {header.width} x {header.height} pixels, at most {max_pixels} are taken")
    if header.pixels > max_pixels:
        raise TooLarge(f"the picture's tiles have {header.pixels} pixels, at most {max_pixels} are taken")
    if header.scans > MAX_SCANS:
        raise TooLarge(f"the picture has more than {MAX_SCANS} scans")
