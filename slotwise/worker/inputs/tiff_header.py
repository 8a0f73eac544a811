"""Read the first directory of a TIFF: size, bits, compression, tiles. Classic TIFF and BigTIFF, in either byte order."""

from __future__ import annotations

import struct
from dataclasses import dataclass

WIDTH, HEIGHT, BITS, COMPRESSION, SAMPLES, ORIENTATION = 256, 257, 258, 259, 277, 274
TILE_WIDTH, TILE_HEIGHT = 322, 323
MAX_ENTRIES = 4096
NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # the field types of whole numbers
CODINGS = {
    1: "raw",
    5: "lzw",
    6: "jpeg",
    7: "jpeg",
    8: "deflate",
    32773: "packbits",
    32946: "deflate",
    34925: "lzma",
    50000: "zstd",
    50001: "webp",
}


@dataclass(frozen=True)
class TiffHeader:
    """What a TIFF's first directory says.

    width, height: as displayed, after the orientation is applied. bits: for each pixel. coding: the compression's name.
    area: pixels of all tiles together, 0 without tiles. turned: whether the orientation is not upright.
    """

    width: int
    height: int
    bits: int
    coding: str
    area: int
    turned: bool


def read_tiff(body: bytes) -> TiffHeader | None:
    """The header of the first picture, None where it has no size. Raises struct.error where it is cut off."""
    tags = _tags(body)
    width, height = tags.get(WIDTH, 0), tags.get(HEIGHT, 0)
    if not width or not height:
        return None
    tile_width, tile_height = tags.get(TILE_WIDTH, 0), tags.get(TILE_HEIGHT, 0)
    tiles = -(-width // tile_width) * -(-height // tile_height) if tile_width and tile_height else 0
    bits = tags.get(BITS, 1) * tags.get(SAMPLES, 1)
    coding = CODINGS.get(tags.get(COMPRESSION, 1), "fax")
    orientation = tags.get(ORIENTATION, 1)
    if orientation in (5, 6, 7, 8):
        width, height = height, width
    return TiffHeader(width, height, bits, coding, tiles * tile_width * tile_height, orientation in range(2, 9))


def _tags(body: bytes) -> dict[int, int]:
    """The first whole number of every entry of the first directory."""
    order = "<" if body[:2] == b"II" else ">"
    big = 43 in body[2:4]
    word, head, step = ("Q", 8, 20) if big else ("I", 4, 12)
    (at,) = struct.unpack_from(order + word, body, 8 if big else 4)
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), body, at)
    at += 8 if big else 2
    tags = {}
    for entry in range(at, at + step * min(count, MAX_ENTRIES), step):
        tag, kind, values = struct.unpack_from(order + "HH" + word, body, entry)
        code = NUMBERS.get(kind)
        if code is None or not values:
            continue
        where = entry + 4 + head
        if struct.calcsize(code) * values > head:
            (where,) = struct.unpack_from(order + word, body, where)
        if where + struct.calcsize(code) <= len(body):
            (tags[tag],) = struct.unpack_from(order + code, body, where)
    return tags
