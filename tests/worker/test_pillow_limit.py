"""Pillow's protection against bombs belongs to the whole process: an author keeps it, and we have our own."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from slotwise.worker.inputs import images
from slotwise.worker.inputs.images import decode_rgb
from slotwise.worker.slot_errors import TooLarge

AUTHOR = """
import io, sys, warnings
import slotwise.worker.inputs.images
from PIL import Image
body = sys.stdin.buffer.read()
with warnings.catch_warnings(record=True) as caught:
    try:
        Image.open(io.BytesIO(body))
    except Image.DecompressionBombError:
        print("refused")
print([warning.category.__name__ for warning in caught])
"""


def claims(side: int) -> bytes:
    """The beginning of a PNG that claims to be side x side pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + head
        + struct.pack(">I", zlib.crc32(head))
        + bytes(4)
        + b"IDAT"
        + bytes(8)
    )


@pytest.mark.parametrize(("side", "said"), [(60_000, "refused\n[]\n"), (10_000, "['DecompressionBombWarning']\n")])
def test_an_authors_own_open_has_pillows_protection(side: int, said: str) -> None:
    run = subprocess.run([sys.executable, "-c", AUTHOR], input=claims(side), capture_output=True, check=True)
    assert run.stdout.decode() == said


@pytest.mark.parametrize("pillows", [100, 1500])  # 2400 pixels: pillow would refuse the first, and warn of the second
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF"])
def test_a_model_may_take_larger_pictures_than_pillow(kind: str, pillows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    Image.new("RGB", (60, 40), (10, 200, 30)).save(target, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillows)
    assert np.abs(decode_rgb(target.getvalue()).mean(axis=(0, 1)) - (10, 200, 30)).max() < 4
    assert pillows == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", ["TIFF", "WEBP"])
def test_where_a_format_has_a_limit_of_its_own_the_picture_is_too_large(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    Image.new("RGB", (60, 40)).save(target, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(TooLarge):
        decode_rgb(target.getvalue())


def test_our_own_limit_holds_where_pillow_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert images.MAX_PIXELS < 60_000**2
    with pytest.raises(TooLarge):
        decode_rgb(claims(60_000))
