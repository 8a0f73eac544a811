"""Measure what decoding costs and how near the estimate comes: the constants in slotwise/worker/inputs/decode_cost.py.

    .venv/bin/python -m benchmarks.decode_cost [WORDS_OF_A_CASE ...]

One line a case: processor time of the fastest of three decodes, peak memory of the first (each case in a process of its own),
the estimates of both, and estimate / truth.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from slotwise.worker.inputs.images import Recipe
from slotwise.worker.slot_errors import SlotError

RECIPE = Recipe(3, 224, 224, resize=256)
SIDES = {"1MP": (960, 720), "2MP": (1600, 1200), "8MP": (3264, 2448)}


def photo(width: int, height: int) -> Image.Image:
    """Something like a photo: smooth shapes and grain."""
    random = np.random.default_rng(0)
    rough = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = random.integers(0, 12 if width < 3000 else 6, (height, width, 1), dtype=np.uint8)
    return Image.fromarray(np.minimum(np.asarray(rough), 240) + grain)


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    target = io.BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()


def cases(words: list[str]) -> Iterator[tuple[str, bytes]]:
    """Every case whose name has all the words. 1 MP: decoded at 3/8; 2 MP: the ordinary; 8 MP: a large photo."""
    makers = {
        "JPEG": lambda p: saved(p, "JPEG", quality=85),
        "JPEG 4:4:4": lambda p: saved(p, "JPEG", quality=95, subsampling=0),
        "JPEG grey": lambda p: saved(p.convert("L"), "JPEG"),
        "JPEG progressive": lambda p: saved(p, "JPEG", progressive=True),
        "JPEG 90 scans": lambda p: (
            saved(p, "JPEG", progressive=True)[:-2] + b"\xff\xda\0\x08\x01\1\0\x01\x05\0\0" * 80 + b"\xff\xd9"
        ),
        "PNG": lambda p: saved(p, "PNG", compress_level=1),
        "PNG alpha": lambda p: saved(p.convert("RGBA"), "PNG", compress_level=1),
        "PNG palette": lambda p: saved(p.quantize(64), "PNG", compress_level=1),
        "PNG 16 bits": lambda p: saved(
            Image.fromarray(np.asarray(p.convert("L")).astype(np.uint16) * 257), "PNG", compress_level=1
        ),
        "WebP lossy": lambda p: saved(p, "WEBP", method=0),
        "WebP alpha": lambda p: saved(p.convert("RGBA"), "WEBP", method=0),
        "WebP lossless": lambda p: saved(p, "WEBP", lossless=True, method=0, quality=0),
        "GIF": lambda p: saved(p.quantize(64), "GIF"),
        "BMP": lambda p: saved(p, "BMP"),
        "TIFF raw": lambda p: saved(p, "TIFF"),
        "TIFF lzw": lambda p: saved(p, "TIFF", compression="tiff_lzw"),
        "TIFF deflate": lambda p: saved(p, "TIFF", compression="tiff_adobe_deflate"),
        "TIFF packbits": lambda p: saved(p, "TIFF", compression="packbits"),
        "TIFF jpeg": lambda p: saved(p, "TIFF", compression="jpeg"),
        "TIFF zstd": lambda p: saved(p, "TIFF", compression="zstd"),
        "TIFF lzma": lambda p: saved(p, "TIFF", compression="lzma"),
        "TIFF fax": lambda p: saved(p.convert("1"), "TIFF", compression="group4"),
        "TIFF turned": lambda p: saved(p, "TIFF", exif=_turned()),
        "JPEG turned": lambda p: saved(p, "JPEG", exif=_turned()),
    }
    kinds = {"photo": photo, "one colour": lambda w, h: Image.new("RGB", (w, h), (200, 30, 30))}
    for size, (width, height) in SIDES.items():
        for kind, draw in kinds.items():
            picture = None
            for name, make in makers.items():
                full = f"{name} {kind} {size}"
                if name == "TIFF lzma" and size != "2MP":
                    continue  # minutes to make
                if all(word in full.split() for word in words):
                    picture = picture or draw(width, height)
                    yield full, make(picture)


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def peak_bytes() -> int:
    """The most memory that this process ever held; ru_maxrss would count what its parent held, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def measure(path: str) -> None:
    """Decode one body in this process and print what it took."""
    body = Path(path).read_bytes()
    RECIPE(saved(Image.new("RGB", (300, 300)), "PNG"))
    before, times, refused = peak_bytes(), [], ""
    for _ in range(3):
        started = time.process_time()
        try:
            RECIPE(body)
        except SlotError as error:
            refused = error.message
        times.append(time.process_time() - started)
        memory = peak_bytes() - before
    print(json.dumps({"ms": min(times) * 1000, "bytes": memory, "refused": refused}))


def main(words: list[str]) -> None:
    print(f"{'case':36} {'ms':>8} {'est':>8} {'x':>5}   {'MB':>6} {'est':>6} {'x':>5}")
    with tempfile.NamedTemporaryFile() as file:
        for name, body in cases(words):
            Path(file.name).write_bytes(body)
            done = subprocess.run([sys.executable, __file__, "--one", file.name], capture_output=True, text=True, check=True)
            truth, cost = json.loads(done.stdout), RECIPE.cost(body)
            assert cost is not None
            memory, estimated = truth["bytes"] / 1e6, cost.memory_bytes / 1e6
            times = f"{truth['ms']:8.1f} {cost.decode_ms:8.1f} {cost.decode_ms / truth['ms']:5.2f}"
            memories = f"{memory:6.0f} {estimated:6.0f} {estimated / max(memory, 1):5.2f}"
            print(f"{name:36} {times}   {memories}   {len(body) / 1e6:6.2f} MB {truth['refused']}", flush=True)


if __name__ == "__main__":
    measure(sys.argv[2]) if sys.argv[1:2] == ["--one"] else main(sys.argv[1:])
