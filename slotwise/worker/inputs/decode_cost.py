"""Estimate from a picture's header what decoding it will take: milliseconds and bytes.

The constants were measured with benchmarks/decode_cost.py, as processor time on a busy server with two cores and pillow 13.
The pictures had 2 to 50 megapixels, and were photos or of a single colour. An estimate should be right within a factor of two,
and rather too high than too low. simplejpeg takes less than is estimated here; one that is damaged takes both.
"""

from __future__ import annotations

from slotwise.worker.budget import Cost
from slotwise.worker.inputs.picture_header import PictureHeader

REFUSED = Cost(0.05, 0)  # of a body that is refused by its header: no decoder sees it
OPEN_MS = 0.1  # to open any file, and to resize a small picture

# Nanoseconds that a format costs: for each pixel, for each byte of the raw pixels, and for each byte of the body.
NANOSECONDS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("PNG", ""): (5, 1.5, 9),
    ("PNG", "interlaced"): (8, 1.5, 9),
    ("WEBP", "lossy"): (16, 0, 70),
    ("WEBP", "lossless"): (16, 0, 20),
    ("GIF", ""): (11, 0, 5),
    ("BMP", ""): (6, 0, 0),
    ("BMP", "rle"): (6, 0, 800),  # pillow does this in Python, run by run
    ("TIFF", "raw"): (6, 0, 0),
    ("TIFF", "packbits"): (6, 0, 0),
    ("TIFF", "lzw"): (5, 1.5, 2),
    ("TIFF", "deflate"): (5, 2, 5),
    ("TIFF", "zstd"): (5, 0.5, 1),
    ("TIFF", "jpeg"): (6, 0.5, 10),
    ("TIFF", "fax"): (15, 0, 5),
    ("TIFF", "lzma"): (5, 6, 30),
    ("TIFF", "webp"): (14, 0, 70),
}
UNKNOWN = (15.0, 10.0, 60.0)
LAYERS_NS = 12  # for each pixel, to lay it on white
DEEP_NS = 4  # for each pixel, from 16 bits to 8
TURN_NS = 6  # for each pixel, at most, to turn a TIFF upright; turning a JPEG costs little beside the rest

JPEG_SAMPLE_NS = 0.6  # for each sample of the full-size picture, even when it is decoded at 1/8 of the size
JPEG_BUFFERED_NS = 2.0  # the same for a picture of several scans, because all coefficients are kept
JPEG_SCAN_NS = 0.1  # for each sample and scan, even where the scan is empty
JPEG_BYTE_NS = 10.0  # for each byte of the body
JPEG_PIXEL_NS = 9.0  # for each pixel of the decoded picture
ARITHMETIC = 5  # how many times longer arithmetic coding takes than Huffman's

FIXED_BYTES = 4 << 20  # strips, tables, the picture at its final size


def estimate(header: PictureHeader, body_bytes: int, size_hint: int | None = None, mode: str = "RGB") -> Cost:
    """The cost of decoding a picture in `mode`, "RGB" or "L". A JPEG may be decoded smaller, down to size_hint a side."""
    count = eighths(header, size_hint)
    pixels = header.pixels * ((4 if count == 3 else count) / 8) ** 2  # 3/8 has fewer pixels and no vector code, either
    ms = _jpeg_ms(header, body_bytes, pixels) if header.format == "JPEG" else _plain_ms(header, body_bytes)
    return Cost(OPEN_MS + ms, _memory_bytes(header, pixels, mode))


def eighths(header: PictureHeader, size_hint: int | None) -> int:
    """In how many eighths of its size a JPEG is decoded: as few as leave either side `size_hint` pixels. Other pictures: 8.

    5, 6 and 7 would take longer than 8: libjpeg-turbo has no vector code for them.
    """
    if header.format != "JPEG" or not size_hint:
        return 8
    shorter = min(header.width, header.height)
    return next((count for count in (1, 2, 3, 4) if shorter * count >= size_hint * 8), 8)


def _jpeg_ms(header: PictureHeader, body_bytes: int, pixels: float) -> float:
    samples = header.pixels * header.bits / 8
    a_sample = JPEG_SAMPLE_NS if header.scans == 1 else JPEG_BUFFERED_NS + JPEG_SCAN_NS * header.scans
    slower = ARITHMETIC if header.coding == "arithmetic" else 1
    return slower * (samples * a_sample + body_bytes * JPEG_BYTE_NS) / 1e6 + pixels * JPEG_PIXEL_NS / 1e6


def _plain_ms(header: PictureHeader, body_bytes: int) -> float:
    a_pixel, a_raw_byte, a_byte = NANOSECONDS.get((header.format, header.coding), UNKNOWN)
    a_pixel += a_raw_byte * header.bits / 8
    if _layered(header):
        a_pixel += LAYERS_NS
    if _deep(header):
        a_pixel += DEEP_NS
    if header.turned:
        a_pixel += TURN_NS
    return (header.pixels * a_pixel + body_bytes * a_byte) / 1e6


def _memory_bytes(header: PictureHeader, pixels: float, mode: str) -> int:
    """The most memory in use: the picture as pillow decodes it, and what else is kept at the same time.

    Pillow takes 4 bytes a pixel for colours, 1 for grey and 2 for 16 bits. simplejpeg's array has 3; pillow's is made from it.
    """
    grey = header.bits <= 8 or _deep(header)
    decoded = pixels * (2 if _deep(header) else 1 if grey else 4)
    converted = pixels * (4 if mode == "RGB" else 1)
    kept = 0.0  # by the decoder, while it decodes
    if header.format == "JPEG" and header.scans > 1:
        kept = header.pixels * header.bits / 8 * 2  # coefficients
    elif header.format == "WEBP":
        kept = header.pixels * 12.0  # two canvases and the frame
    elif header.turned:
        kept = decoded
    if mode == "RGB" and header.format == "JPEG" and header.bits < 32:
        decoded, converted = pixels * 4, pixels * 3
    elif mode == "RGB" and not grey and header.bits < 32:
        converted = 0.0  # it has this mode already
    return int(decoded + max(kept, converted)) + FIXED_BYTES


def _layered(header: PictureHeader) -> bool:
    """Whether there may be transparency."""
    return header.format in ("PNG", "TIFF") and header.bits in (32, 64)


def _deep(header: PictureHeader) -> bool:
    return header.format in ("PNG", "TIFF") and header.bits == 16
