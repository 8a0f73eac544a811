"""Headers that no encoder writes: what cannot be read is None, and reading it ends."""

from __future__ import annotations

import struct

import pytest

from slotwise.worker.inputs.picture_header import MAX_BLOCKS, MAX_SEGMENTS, read_header

SCREEN = b"GIF89a" + struct.pack("<HHBBB", 4, 5, 0, 0, 0)
IMAGE = b"\x2c" + struct.pack("<HHHHB", 0, 0, 9, 3, 0)
EXTENSION = b"\x21\xfe"  # a comment


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xd8\xff" + b"\xd0\xff" * (MAX_SEGMENTS + 1),  # segments without a length, and never a frame
        b"\xff\xd8\xff\xda\x00\x02" + b"\xff\xd0" * MAX_SEGMENTS,  # a scan before any frame
        SCREEN + b";",
        SCREEN + b"\0" * (MAX_SEGMENTS + 1) + IMAGE,
        SCREEN + EXTENSION + b"\1x" * (MAX_BLOCKS + 1) + b"\0" + IMAGE,
        SCREEN + EXTENSION,
        b"II*\0\xff\xff\xff\xff",
        b"BM" + b"\0" * 12,
        b"RIFF\0\0\0\0WEBPVP9 " + b"\0" * 20,
        b"II*\0\x08\0\0\0\0\0",  # a directory of nothing: no size
        b"II*\0\x08\0\0\0\1\0\0\1\4\0\2\0\0\0\xff\xff\0\0",  # its width stands behind its end
    ],
)
def test_what_has_no_header(body: bytes) -> None:
    assert read_header(body) is None


def test_a_gif_is_as_large_as_its_first_frame_reaches() -> None:
    for between in (b"", b"\0\0", EXTENSION + b"\3abc\0"):
        header = read_header(SCREEN + between + IMAGE)
        assert header is not None
        assert (header.width, header.height) == (9, 5)


def test_bitmaps_of_both_kinds_and_from_the_top() -> None:
    old = read_header(b"BM" + b"\0" * 12 + struct.pack("<IHHHH", 12, 7, 8, 1, 24))
    new = read_header(b"BM" + b"\0" * 12 + struct.pack("<IIiHHI", 40, 7, -8, 1, 8, 1))
    assert old is not None
    assert new is not None
    assert (old.width, old.height, new.width, new.height, new.coding) == (7, 8, 7, 8, "rle")
