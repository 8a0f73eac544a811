"""What a picture will cost is known from its header, and what it really takes stays within bounds."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from slotwise.worker import BadRequest, TooLarge, UnsupportedMedia
from slotwise.worker.inputs import images
from slotwise.worker.inputs.decode_cost import REFUSED
from slotwise.worker.inputs.images import Recipe, cost, decode_rgb
from slotwise.worker.inputs.picture_header import read_header
from tests.support.pictures import BAD, CARRIES_EXIF, FINE, encoded, noisy, plain, png_header, png_of

RECIPE = Recipe(3, 224, 224, resize=256)


def turned_by(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def one_colour_webp(side: int) -> bytes:
    return encoded(Image.new("RGB", (side, side), (1, 2, 3)), "WEBP", lossless=True, quality=0, method=0)


def deep_png(width: int, height: int) -> bytes:
    """16-bit grey, all of one value: kilobytes that become megapixels."""
    return png_of(width, height, 16, 0, zlib.compress((b"\0" + b"\x55\xaa" * width) * height, 1))


def tiled_tiff(width: int, height: int, tile: tuple[int, int]) -> bytes:
    entries = [(256, width), (257, height), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile[0]), (323, tile[1])]
    entries += [(324, 8), (325, 8)]
    packed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + packed + bytes(4)


def gif_that_fills(width: int, height: int) -> bytes:
    """A frame that asks to be disposed of: pillow fills its whole area while it opens the file."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0)
    disposed = b"!\xf9\x04\x08\0\0\0\0"
    return screen + disposed + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x08\x02\x00\x01\x00;"


def many_scans(count: int) -> bytes:
    """Not progressive, but a scan a component, and that again and again."""
    body = encoded(noisy((64, 64)), "JPEG")
    first_component = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    return body[: body.index(b"\xff\xda")] + first_component * count + b"\xff\xd9"


OVER: dict[str, bytes] = {
    "png": png_header(60_000, 60_000),
    "gif": gif_that_fills(65_000, 65_000),
    "webp": b"RIFF\x1e\0\0\0WEBPVP8L\x11\0\0\0\x2f\xff\xff\xff\x0f" + bytes(20),
    "bmp": encoded(plain(), "BMP").replace(struct.pack("<II", 60, 40), struct.pack("<II", 60_000, 40_000)),
    "tiles of a tiff": tiled_tiff(10, 10, (30_000, 30_000)),
    "scans of a jpeg": many_scans(images.MAX_SCANS + 1),
}


@pytest.mark.parametrize("name", OVER)
def test_what_is_over_a_limit_costs_nothing_and_no_decoder_sees_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("pillow saw it"))
    monkeypatch.setattr(images, "decode_jpeg", lambda *_, **__: pytest.fail("simplejpeg saw it"))
    assert cost(OVER[name]) == REFUSED
    with pytest.raises(TooLarge):
        decode_rgb(OVER[name])


def test_the_header_says_what_pillow_says() -> None:
    bodies = {name: make() for name, (make, _) in FINE.items()}
    bodies |= {kind: encoded(noisy((50, 40)), kind.split()[0], **options) for kind, options in CARRIES_EXIF.items()}
    bodies["big tiff"] = encoded(noisy((50, 40)), "TIFF", big_tiff=True)
    bodies["lossy webp"] = encoded(noisy((50, 40)), "WEBP")
    bodies["alpha webp"] = encoded(noisy((50, 40)).convert("RGBA"), "WEBP")
    for name, body in bodies.items():
        header, picture = read_header(body), Image.open(io.BytesIO(body))
        assert header is not None, name
        assert (header.width, header.height) == picture.size, name
        assert header.format == (picture.format or "").replace("MPO", "JPEG"), name


def test_what_stands_between_the_segments_of_a_jpeg_is_skipped() -> None:
    body = encoded(noisy((50, 40)), "JPEG", restart_marker_blocks=4)
    frame, scan = body.index(b"\xff\xc0"), body.index(b"\xff\xda")
    odd = body[:frame] + b"\xff\xff\xff" + body[frame:scan] + b"\xff\xff" + body[scan:]
    assert (decode_rgb(odd) == decode_rgb(body)).all()
    assert cost(odd).decode_ms == pytest.approx(cost(body).decode_ms, rel=0.01)


def test_a_gif_of_a_million_blocks_is_not_read_to_its_end() -> None:
    body = encoded(plain(), "GIF")
    at = body.index(b",", 13)
    assert cost(body[:at] + b"!\xfe" + b"\x01x" * 100_000 + b"\0" + body[at:]) == REFUSED


def test_a_header_that_contradicts_itself_is_damage() -> None:
    body = encoded(noisy((40, 40)))
    second = b"IHDR" + struct.pack(">IIBBBBB", 7000, 7000, 8, 2, 0, 0, 0)
    at = body.index(b"IDAT") - 4
    twice = body[:at] + struct.pack(">I", 13) + second + struct.pack(">I", zlib.crc32(second)) + body[at:]
    assert Image.open(io.BytesIO(twice)).size == (7000, 7000)
    assert cost(twice).decode_ms < 5
    with pytest.raises(BadRequest):
        decode_rgb(twice)


def test_a_picture_in_a_million_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_READS", 500)
    body = encoded(plain())
    piece = struct.pack(">I", 0) + b"tEXt" + struct.pack(">I", zlib.crc32(b"tEXt"))
    assert decode_rgb(body).shape == (40, 60, 3)
    with pytest.raises(TooLarge, match="pieces"):
        decode_rgb(body[:33] + piece * 500 + body[33:])


def test_the_estimate_knows_what_is_dear() -> None:
    bomb = one_colour_webp(7000)
    assert len(bomb) < 60
    assert RECIPE.cost(bomb).decode_ms > 300
    assert RECIPE.cost(bomb).memory_bytes > 500e6
    photo = encoded(noisy((800, 600)), "JPEG")
    progressive = encoded(noisy((800, 600)), "JPEG", progressive=True)
    interlaced = png_header(4000, 3000)[:28] + b"\x01" + png_header(4000, 3000)[29:]
    assert RECIPE.cost(photo).decode_ms < cost(photo).decode_ms < cost(progressive).decode_ms
    assert cost(png_header(4000, 3000)).decode_ms < cost(interlaced).decode_ms
    assert cost(encoded(noisy((20, 20)))).decode_ms < 2
    assert [cost(body) for body in (b"", b"hello", b"\x89PNG\r\n\x1a\n", bytes(40 << 20))] == [REFUSED] * 4


def test_estimating_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [make() for make, _ in [*FINE.values(), *BAD.values()]]
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("pillow saw it"))
    for body in bodies:
        assert cost(body).decode_ms > 0


SEEDS = [encoded(noisy((50, 40)), kind.split()[0], **options) for kind, options in CARRIES_EXIF.items()]
SEEDS += [encoded(noisy((50, 40)), kind) for kind in ("GIF", "BMP")] + [deep_png(30, 20), one_colour_webp(30)]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6), st.integers(0, 8000))
@example(SEEDS[0], [], 3)
def test_damage_is_one_clear_refusal_or_a_picture_and_the_estimate_never_raises(
    body: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(body[: cut or len(body)] if cut % 2 else body)
    for at, value in changes:
        if at < len(damaged):
            damaged[at] = value
    estimated = cost(bytes(damaged), max_pixels=10**6)
    assert estimated.decode_ms > 0
    assert estimated.memory_bytes >= 0
    try:
        pixels = decode_rgb(bytes(damaged), max_pixels=10**6)
    except (BadRequest, TooLarge, UnsupportedMedia):
        return
    assert pixels.dtype == np.uint8


CHILD = """
import json, sys
from pathlib import Path
from slotwise.worker.inputs.images import Recipe

def peak():
    return next(int(l.split()[1]) << 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))

body, recipe = Path(sys.argv[1]).read_bytes(), Recipe(3, 224, 224, resize=256)
before = peak()
recipe(body)
print(json.dumps(peak() - before))
"""


def peak_bytes(body: bytes, folder: Path) -> int:
    """How much more memory a process holds at its peak because it decodes this; pillow's own memory included."""
    (folder / "body").write_bytes(body)
    command = [sys.executable, "-c", CHILD, str(folder / "body")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ), timeout=120)
    return int(json.loads(done.stdout))


DEAR: dict[str, Any] = {
    "16 bits": lambda: deep_png(5000, 4000),
    "alpha": lambda: encoded(Image.new("RGBA", (5000, 4000), (9, 9, 9, 9)), compress_level=1),
    "webp": lambda: one_colour_webp(4500),
    "progressive jpeg": lambda: encoded(Image.new("RGB", (5000, 4000)), "JPEG", progressive=True),
    "turned tiff": lambda: encoded(Image.new("RGB", (5000, 4000)), "TIFF", compression="packbits", exif=turned_by(6)),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("name", DEAR)
def test_a_decode_holds_no_more_than_was_estimated(name: str, tmp_path: Path) -> None:
    body = DEAR[name]()
    peak, estimated = peak_bytes(body, tmp_path), RECIPE.cost(body).memory_bytes
    assert peak < 1.5 * estimated + 30e6
    assert estimated < 3 * peak
    if name == "16 bits":
        assert peak < 9 * 20e6  # nine bytes a pixel; it were seventeen once
