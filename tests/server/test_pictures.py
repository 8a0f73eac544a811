"""Odd and bad pictures in one full batch on both real servers; all of them, on the handler: tests/worker/test_images.py."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from slotwise.files import project
from tests.server.bursts import together
from tests.server.conftest import Live
from tests.support.pictures import encoded, png_header

pytestmark = pytest.mark.server


def example(label: str) -> Image.Image:
    with Image.open(project.model_folder("digits") / "examples" / f"{label}.png") as picture:
        return picture.convert("L")


def turned(picture: Image.Image) -> bytes:
    """A JPEG that only EXIF says how to hold."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture.rotate(90, expand=True), "JPEG", exif=exif)


def test_odd_pictures_are_read_and_bad_ones_refused_in_one_batch(live: Live) -> None:
    deep = Image.fromarray(np.asarray(example("2")).astype(np.uint16) * 257)
    animated = encoded(example("4"), "GIF", save_all=True, append_images=[example("1"), example("9")])
    cases: list[tuple[bytes, int, str]] = [
        (turned(example("7")), 200, "7"),
        (png_header(60_000, 60_000), 413, ""),
        (encoded(deep), 200, "2"),
        (b"%PDF-1.7" + bytes(100), 415, ""),
        (animated, 200, "4"),
        (encoded(ImageOps.invert(example("5")).convert("CMYK"), "JPEG"), 200, "5"),
        (encoded(example("3"))[:-200], 400, ""),
        (encoded(ImageOps.invert(example("8")).resize((1200, 1200)), "WEBP"), 200, "8"),
    ]
    before = live.pids("digits")
    answers = together(live.inference, "digits", [sent for sent, _, _ in cases])
    assert {answer.batch_size for answer in answers} == {len(cases)}
    for (_, status, label), answer in zip(cases, answers, strict=True):
        assert answer.status == status, answer
        assert answer.body["label"] == label if status == 200 else answer.is_clean_error
    assert live.pids("digits") == before
