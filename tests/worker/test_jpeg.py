"""A JPEG gives the same item, or the same refusal, with simplejpeg and without it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.worker.inputs import jpeg
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.slot_errors import SlotError
from tests.support.pictures import encoded, exif_turned, noisy

pytest.importorskip("simplejpeg")
OF_COLOUR, OF_GREY = Recipe(3, 32, 32, resize=36), Recipe(1, 28, 28)
INK = Recipe(1, 28, 28, ink=True)
AT_3_OF_8 = Recipe(3, 64, 64, resize=70)  # of pictures of 301 x 203; the next of those of 90 x 50
GREY_AT_3_OF_8, SMALL_AT_3_OF_8 = Recipe(1, 60, 60, resize=70), Recipe(3, 16, 16, resize=18)
ALL = (decode_rgb, OF_COLOUR, OF_GREY, INK, AT_3_OF_8, GREY_AT_3_OF_8, SMALL_AT_3_OF_8)


def outcome(decode: Callable[[bytes], Any], body: bytes) -> Any:
    """The pixels, or the refusal's class and message."""
    try:
        return decode(body).tobytes()
    except SlotError as error:
        return type(error).__name__, error.message


def same(body: bytes, monkeypatch: pytest.MonkeyPatch, *decoders: Callable[[bytes], Any]) -> list[Any]:
    """What the decoders give with simplejpeg, which is what they give without it."""
    decoders = decoders or ALL
    quick = [outcome(decode, body) for decode in decoders]
    with monkeypatch.context() as patch:
        patch.setattr(jpeg, "simplejpeg", None)
        assert [outcome(decode, body) for decode in decoders] == quick
    return quick


def lying(width: int, height: int) -> bytes:
    """A picture of 300 x 200 that says it has another size."""
    body = encoded(noisy((300, 200)), "JPEG")
    at = body.index(b"\xff\xc0") + 5
    return body[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + body[at + 4 :]


KINDS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: encoded(noisy((301, 203)), "JPEG"),
    "4:4:4": lambda: encoded(noisy((301, 203)), "JPEG", subsampling=0, quality=95),
    "4:2:2": lambda: encoded(noisy((301, 203)), "JPEG", subsampling=1, quality=30),
    "rgb": lambda: encoded(noisy((301, 203)), "JPEG", keep_rgb=True),
    "grey": lambda: encoded(noisy((301, 203)).convert("L"), "JPEG"),
    "cmyk": lambda: encoded(noisy((301, 203)).convert("CMYK"), "JPEG"),
    "progressive": lambda: encoded(noisy((301, 203)), "JPEG", progressive=True),
    "restarts": lambda: encoded(noisy((301, 203)), "JPEG", restart_marker_blocks=3),
    "of several": lambda: encoded(noisy((301, 203)), "MPO", save_all=True, append_images=[noisy((90, 80))]),
    "1 pixel": lambda: encoded(noisy((1, 1)), "JPEG"),
    "17x33": lambda: encoded(noisy((17, 33)), "JPEG"),
    "a line": lambda: encoded(noisy((4000, 2)), "JPEG"),
    "bytes behind it": lambda: encoded(noisy((301, 203)), "JPEG") + b"more" * 999,
    "a picture behind it": lambda: encoded(noisy((301, 203)), "JPEG") + encoded(noisy((90, 80)), "JPEG"),
    "many scans": lambda: (
        encoded(noisy((90, 80)), "JPEG", progressive=True)[:-2] + b"\xff\xda\0\x08\x01\1\0\x01\x05\0\0" * 30 + b"\xff\xd9"
    ),
    **{f"exif {i}": (lambda i=i: exif_turned(i)) for i in (1, 2, 3, 4, 5, 6, 7, 8, 77)},
}


@pytest.mark.parametrize("name", KINDS)
def test_the_pixels_are_those_of_pillow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(isinstance(result, bytes) for result in same(KINDS[name](), monkeypatch))


@pytest.mark.parametrize("body", [lying(3000, 2000), lying(300, 210), lying(300, 0), lying(20, 9), lying(65000, 65000)])
def test_a_lying_size_is_judged_as_before(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    same(body, monkeypatch)


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_half_a_picture_is_refused_wherever_it_is_cut(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    body = encoded(noisy((200, 150)), "JPEG", **options)
    for end in (*range(100, len(body), len(body) // 9), len(body) - 9, len(body) - 2):
        assert {result[0] for result in same(body[:end], monkeypatch, decode_rgb, OF_COLOUR)} == {"BadRequest"}, end


def test_damage_has_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    bodies = [encoded(noisy((60, 50)), "JPEG", **options) for options in ({}, {"progressive": True}, {"quality": 100})]
    for i in range(150):
        body = bytearray(bodies[i % len(bodies)])
        for at in random.integers(2, len(body) if i % 4 else 200, 1 + i % 3):
            body[at] = random.integers(256)
        same(bytes(body), monkeypatch, lambda body: decode_rgb(body, max_pixels=10**6), OF_COLOUR)


def test_an_ordinary_jpeg_never_meets_pillows_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("pillow saw it"))
    for size, decoded in (((800, 600), (75, 100)), ((300, 200), (50, 75)), ((130, 101), (38, 49)), ((60, 40), (40, 60))):
        body = encoded(noisy(size), "JPEG")
        assert decode_rgb(body, size_hint=36).shape == (*decoded, 3)
        assert OF_COLOUR(body).shape == (32, 32, 3)


def test_what_could_take_seconds_is_left_to_pillow_which_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg.simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("simplejpeg saw it"))
    body = KINDS["many scans"]()
    assert decode_rgb(body).shape == (80, 90, 3)
    assert Image.open(io.BytesIO(body)).size == (90, 80)
