"""Pictures of every kind, good and bad."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 210)}


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()


def plain(colour: str = "green", size: tuple[int, int] = (60, 40), mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", size, COLOURS[colour]).convert(mode)


def noisy(size: tuple[int, int], colour: str = "blue") -> Image.Image:
    """Real photos do not compress to nothing."""
    noise = np.random.default_rng(0).integers(-25, 25, (size[1], size[0], 3))
    return Image.fromarray((noise + np.array(COLOURS[colour])).clip(0, 255).astype(np.uint8))


def transparent() -> Image.Image:
    """A green disc's worth of opaque pixels; what is see-through is red underneath."""
    picture = Image.new("RGBA", (40, 40), (*COLOURS["red"], 0))
    picture.paste((*COLOURS["green"], 255), (8, 8, 32, 32))
    return picture


def palette_with_hole() -> bytes:
    picture = plain("green").quantize(4)
    return encoded(picture, "PNG", transparency=3)


def animated() -> bytes:
    return encoded(plain("blue"), "GIF", save_all=True, append_images=[plain("red"), plain("red")], duration=50)


def exif_turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(noisy((90, 50)), "JPEG", exif=exif)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, bits: int, colour: int, packed: bytes) -> bytes:
    """A PNG of this size, depth and type of colour, with these packed pixels, whatever they are."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims to be this large, with next to no data: what a decompression bomb starts with."""
    return png_of(width, height, 8, 2, zlib.compress(bytes(100_000)))


FINE: dict[str, tuple[Callable[[], bytes], str]] = {
    "png": (lambda: encoded(plain()), "green"),
    "jpeg": (lambda: encoded(plain(), "JPEG"), "green"),
    "progressive": (lambda: encoded(noisy((300, 200)), "JPEG", progressive=True), "blue"),
    "webp": (lambda: encoded(plain(), "WEBP"), "green"),
    "bmp": (lambda: encoded(plain(), "BMP"), "green"),
    "tiff": (lambda: encoded(plain(), "TIFF"), "green"),
    "palette": (lambda: encoded(plain("blue").quantize(8)), "blue"),
    "palette, transparent": (palette_with_hole, "green"),
    "alpha": (lambda: encoded(transparent()), "green"),
    "cmyk": (lambda: encoded(plain("red").convert("CMYK"), "JPEG"), "red"),
    "animated": (animated, "blue"),
    "1x1": (lambda: encoded(plain("blue", (1, 1))), "blue"),
    "30000x2": (lambda: encoded(plain("red", (30000, 2))), "red"),
    "2x30000": (lambda: encoded(plain("red", (2, 30000)), "JPEG"), "red"),
    "large": (lambda: encoded(noisy((2000, 1500)), "JPEG"), "blue"),
    **{f"exif {i}": (lambda i=i: exif_turned(i), "blue") for i in range(1, 9)},
    "exif 77": (lambda: exif_turned(77), "blue"),
}


BAD: dict[str, tuple[Callable[[], bytes], int]] = {
    "empty": (lambda: b"", 400),
    "text": (lambda: b"hello, world", 400),
    "json": (lambda: b'{"instances": [1, 2]}', 400),
    "zeros": (lambda: bytes(5000), 400),
    "only a signature": (lambda: b"\x89PNG\r\n\x1a\n", 400),
    "truncated png": (lambda: encoded(noisy((80, 80)))[:-400], 400),
    "truncated jpeg": (lambda: encoded(noisy((400, 300)), "JPEG")[:9000], 400),
    "truncated gif": (lambda: animated()[:60], 400),
    "truncated webp": (lambda: encoded(noisy((100, 100)), "WEBP")[:500], 400),
    "truncated tiff": (lambda: encoded(noisy((60, 60)), "TIFF")[:300], 400),
    "broken png": (lambda: encoded(noisy((80, 80))).replace(b"IDAT", b"IDOT", 1), 400),
    "bomb": (lambda: png_header(60_000, 60_000), 413),
    "large bomb of a gif": (lambda: b"GIF89a" + struct.pack("<HH", 65_000, 65_000) + encoded(plain(), "GIF")[10:], 413),
    "too many pixels": (lambda: encoded(plain("red", (2500, 2500))), 413),
    "too many scans": (
        lambda: encoded(noisy((64, 64)), "JPEG", progressive=True)[:-2] + b"\xff\xda\x00\x02" * 200 + b"\xff\xd9",
        413,
    ),
    "pdf": (lambda: b"%PDF-1.7 " + bytes(200), 415),
    "svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415),
    "heic": (lambda: b"\x00\x00\x00\x18ftypheic" + bytes(100), 415),
    "floating point": (lambda: encoded(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), 415),
}


CARRIES_EXIF: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "TIFF lzw": {"compression": "tiff_lzw"},
    "TIFF jpeg": {"compression": "jpeg", "quality": 95},
    "MPO": {"save_all": True, "append_images": [plain("red")], "quality": 95},
}
