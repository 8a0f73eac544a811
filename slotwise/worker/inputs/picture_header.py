"""Read a picture's header in microseconds, without pillow: nothing is decoded, and no memory is reserved.

Pillow reserves memory for some formats while it opens them, so limits are checked on this header first. Where pillow then
sees another size than this header, the file contradicts itself and is refused. So no file can make its estimate too low.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from slotwise.worker.inputs.tiff_header import read_tiff

MAX_SEGMENTS = 1000  # of a JPEG or GIF before its picture starts; real files have dozens
MAX_BLOCKS = 20_000  # of a GIF's comments and the like
STARTS_OF_FRAME = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
ARITHMETIC = {0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


class PictureHeader(NamedTuple):  # every request makes one: a frozen dataclass takes five times as long
    """What is known of a picture before it is decoded.

    format: pillow's name for it. width, height: in pixels. bits: stored for each pixel. coding: how the pixels are stored,
    where a format has several ways. scans: how often a decoder passes over the picture. area: how many pixels are decoded,
    which is more than width * height where a TIFF's tiles reach beyond its edges. turned: a TIFF that pillow turns upright.
    tagged: a JPEG with EXIF or XMP, which may say that it has to be turned.
    """

    format: str
    width: int
    height: int
    bits: int = 24
    coding: str = ""
    scans: int = 1
    area: int = 0
    turned: bool = False
    tagged: bool = False

    @property
    def pixels(self) -> int:
        """How many pixels the decoder will make."""
        return max(self.width * self.height, self.area)


def read_header(body: bytes, whole: bool = True) -> PictureHeader | None:
    """The header of a JPEG, PNG, WebP, GIF, BMP or TIFF; None where it cannot be read. Raises nothing.

    whole: False where `body` is only the beginning of a file: None where the rest may say something else.
    """
    try:
        if body.startswith(b"\xff\xd8\xff"):
            return _jpeg(body, whole)
        if body.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(body)
        if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
            return _webp(body)
        if body.startswith((b"GIF87a", b"GIF89a")):
            return _gif(body)
        if body.startswith(b"BM"):
            return _bmp(body)
        if body[:4] in TIFF:
            return _tiff(body) if whole else None
    except (struct.error, IndexError, ValueError, OverflowError):
        pass
    return None


def may_be_picture(start: bytes) -> bool:
    """Whether a file that begins so may have a header that can be read."""
    return start.startswith((b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"GIF8", b"BM", *TIFF))


def _png(body: bytes) -> PictureHeader | None:
    if body[12:16] != b"IHDR":
        return None
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", body, 16)
    return PictureHeader("PNG", width, height, depth * PNG_SAMPLES.get(colour, 4), "interlaced" if interlaced else "")


def _jpeg(body: bytes, whole: bool) -> PictureHeader | None:
    frame: tuple[int, int, int] | None = None
    tagged = False
    for marker, at in _segments(body):
        if marker in STARTS_OF_FRAME and frame is None:
            frame = marker, at, body[at + 9]
        tagged = tagged or marker == 0xE1
        if marker == 0xDA and frame is not None:
            all_components = body[at + 4] == frame[2]  # a baseline picture then has no second scan that is decoded
            counted = not all_components or frame[0] in PROGRESSIVE
            if counted and not whole:
                return None
            scans = body.count(b"\xff\xda", at) if counted else 1
            return _jpeg_frame(body, *frame, scans)._replace(tagged=tagged)
    return None


def _segments(body: bytes) -> Iterator[tuple[int, int]]:
    """The marker and the place of every segment of a JPEG, in order."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        at = body.index(0xFF, at)  # what stands between segments is skipped, as pillow does
        marker = body[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:  # without a length
            at += 2
        else:
            yield marker, at
            at += 2 + int(struct.unpack_from(">H", body, at + 2)[0])


def _jpeg_frame(body: bytes, marker: int, at: int, components: int, scans: int) -> PictureHeader:
    height, width = struct.unpack_from(">HH", body, at + 5)
    sampling = [body[at + 11 + 3 * i] for i in range(components)]
    factors = [(byte >> 4) * (byte & 15) for byte in sampling]
    samples = sum(factors) / max(1, *factors) if components > 1 else 1.0  # a pixel: 3 for 4:4:4, 1.5 for 4:2:0
    coding = "arithmetic" if marker in ARITHMETIC else "progressive" if marker in PROGRESSIVE else ""
    return PictureHeader("JPEG", width, height, round(8 * samples), coding, scans)


def _webp(body: bytes) -> PictureHeader | None:
    kind = body[12:16]
    if kind == b"VP8L":
        packed = struct.unpack_from("<I", body, 21)[0]
        return PictureHeader("WEBP", (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1, 32, "lossless")
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 26)
        return PictureHeader("WEBP", width & 0x3FFF, height & 0x3FFF, 24, "lossy")
    if kind == b"VP8X":
        sides = [int.from_bytes(body[at : at + 3], "little") + 1 for at in (24, 27)]
        lossless = b"VP8L" in body[: 1 << 16]  # metadata may stand before it
        return PictureHeader("WEBP", sides[0], sides[1], 32, "lossless" if lossless else "lossy")
    return None


def _gif(body: bytes) -> PictureHeader | None:
    """The size of the screen, enlarged where the first frame is larger, as pillow does it."""
    width, height, flags = struct.unpack_from("<HHB", body, 6)
    blocks = MAX_BLOCKS
    at = 13 + (3 << (flags & 7) + 1 if flags & 128 else 0)
    for _ in range(MAX_SEGMENTS):
        if body[at] == 0x2C:
            left, top, wide, high = struct.unpack_from("<HHHH", body, at + 1)
            return PictureHeader("GIF", max(width, left + wide), max(height, top + high), 8)
        if body[at] == 0x3B:
            return None
        if body[at] == 0x21:
            at, blocks = _behind_blocks(body, at + 2, blocks)
        else:
            at += 1  # what stands between blocks is skipped, as pillow does
    return None


def _behind_blocks(body: bytes, at: int, most: int) -> tuple[int, int]:
    """Skip an extension's blocks. Returns where it ends, and how many more blocks may be skipped. Raises ValueError at 0."""
    while size := body[at]:
        at += size + 1
        most -= 1
        if most < 0:
            raise ValueError("too many blocks")
    return at + 1, most


def _tiff(body: bytes) -> PictureHeader | None:
    tiff = read_tiff(body)
    if tiff is None:
        return None
    return PictureHeader("TIFF", tiff.width, tiff.height, tiff.bits, tiff.coding, area=tiff.area, turned=tiff.turned)


def _bmp(body: bytes) -> PictureHeader:
    if body[14] == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", body, 18)
        return PictureHeader("BMP", width, height, bits)
    width, height, _, bits, coding = struct.unpack_from("<IIHHI", body, 18)
    if body[25] == 0xFF:  # a negative height: rows from the top
        height = 2**32 - height
    return PictureHeader("BMP", width, height, bits, "rle" if coding in (1, 2) else "")
