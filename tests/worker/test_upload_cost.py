"""An estimate is cheap itself, whatever is sent, and what it says from a beginning is what it would say of the whole."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slotwise.worker import BadRequest, Headers, SlotError, TooLarge
from slotwise.worker.budget import Cost
from slotwise.worker.inputs import packed, upload_cost
from slotwise.worker.inputs.images import REFUSED, Recipe
from slotwise.worker.inputs.upload_cost import LOOK_BYTES, MOST_LOOK_BYTES, cost_of
from slotwise.worker.inputs.uploads import items_of

ZIPPED = Headers({"content-encoding": "gzip"})
RECIPE = Recipe(3, 32, 32)


def picture(kind: str, side: int = 400, **options: Any) -> bytes:
    """A picture that does not compress."""
    target = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)).save(target, kind, **options)
    return target.getvalue()


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes gzip unpacked, call by call."""
    sizes: list[int] = []

    class Watched:
        eof, unused_data = True, b""

        def __init__(self, window: int) -> None:
            self.inner = decompressobj(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            got = self.inner.decompress(data, most)
            sizes.append(len(got))
            return got

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(packed.zlib, "decompressobj", Watched)
    return sizes


BOMBS = {
    "pixels": picture("PNG", 40) + bytes(60 << 20),
    "a late header": b"\xff\xd8" + b"\xff\xe1\xff\xff" + bytes(30 << 20),
    "a tiff": b"II*\0" + (25 << 20).to_bytes(4, "little") + bytes(30 << 20),
    "blanks": b"[" + b" " * (60 << 20) + b"]",
    "json": b'{"data": "' + b"A" * (60 << 20) + b'"}',
    "nothing": bytes(60 << 20),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_to_estimate_a_gzip_bomb_little_of_it_is_unpacked(name: str, unpacked: list[int]) -> None:
    body = gzip.compress(BOMBS[name], 9)
    assert len(body) < 80_000
    if name in ("pixels", "nothing"):
        cost = cost_of(body, ZIPPED, RECIPE.cost)
        assert cost.decode_ms > 100, "what unpacking all of it will take is a part of the cost"
        assert cost.memory_bytes >= 120 << 20
    else:
        with pytest.raises(TooLarge, match="without gzip"):
            cost_of(body, ZIPPED, RECIPE.cost)
    assert sum(unpacked) <= LOOK_BYTES + MOST_LOOK_BYTES


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300) | st.sampled_from([*(bomb[: 8 << 20] for bomb in BOMBS.values()), picture("PNG", 4)]),
    st.sampled_from(["", "[", '"', '{"data": "']),
    st.binary(max_size=8),
    st.booleans(),
)
def test_whatever_is_packed_an_estimate_unpacks_little(file: bytes, start: str, end: bytes, cut: bool) -> None:
    sizes: list[int] = []
    body = gzip.compress(start.encode() + file, 1)
    body = body[: len(body) // 2] if cut else body + end
    plain = packed._decompressed

    def watched(unpacker: Any, data: bytes, most: int) -> bytes:
        got = plain(unpacker, data, most)
        sizes.append(len(got))
        return got

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SlotError):
        patch.setattr(packed, "_decompressed", watched)
        cost_of(body, ZIPPED, RECIPE.cost)
    assert sum(sizes) <= 2 * (LOOK_BYTES + MOST_LOOK_BYTES)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_the_beginning_of_a_picture_tells_what_the_whole_one_costs(kind: str, unpacked: list[int]) -> None:
    file = picture(kind, quality=100) if kind in ("JPEG", "WEBP") else picture(kind)
    assert len(file) > LOOK_BYTES
    assert RECIPE.cost(file[:LOOK_BYTES], len(file)) == RECIPE.cost(file)
    one = cost_of(file, Headers(), RECIPE.cost)
    zipped = cost_of(gzip.compress(file, 1), ZIPPED, RECIPE.cost)
    assert zipped.decode_ms == pytest.approx(one.decode_ms + len(file) * packed.UNPACK_NS / 1e6)
    assert sum(unpacked) == LOOK_BYTES
    text = json.dumps([encoded(file)] * 2).encode()
    two = cost_of(text, Headers(), RECIPE.cost)
    assert 2 * one.decode_ms <= two.decode_ms - len(text) * upload_cost.TEXT_NS / 1e6 <= 3 * one.decode_ms


@pytest.mark.parametrize(("kind", "options"), [("TIFF", {}), ("JPEG", {"progressive": True, "quality": 100})])
def test_where_the_beginning_does_not_tell_more_of_it_is_unpacked(kind: str, options: dict[str, Any]) -> None:
    file = picture(kind, **options)
    assert RECIPE.cost(file[:LOOK_BYTES], len(file)) is None
    one = cost_of(file, Headers(), RECIPE.cost)
    for body, headers in [(gzip.compress(file, 1), ZIPPED), (json.dumps(encoded(file)).encode(), Headers())]:
        assert one.decode_ms < cost_of(body, headers, RECIPE.cost).decode_ms < one.decode_ms + 10


def test_a_picture_with_a_late_header_is_taken_in_a_large_gzip_body() -> None:
    file = picture("JPEG")
    late = file[:2] + (b"\xff\xe2\xff\xff" + bytes(65533)) * 20 + file[2:] + bytes(5 << 20)
    assert RECIPE.cost(late[:LOOK_BYTES], len(late)) is None
    assert cost_of(gzip.compress(late, 1), ZIPPED, RECIPE.cost).decode_ms > cost_of(file, Headers(), RECIPE.cost).decode_ms


def test_a_gzip_body_is_unpacked_no_further_than_it_says(unpacked: list[int]) -> None:
    honest = gzip.compress(bytes(1 << 20), 9)
    lying = honest[:-4] + (1000).to_bytes(4, "little")
    assert packed.unpacked_size(lying) == 1000
    with pytest.raises(BadRequest):
        items_of(lying, ZIPPED)
    assert unpacked == [1001]


def test_base64_takes_little_memory_however_it_is_spread(unpacked: list[int]) -> None:
    blanks = " ".join("A" * 1_600_000) + "\\n" * 1_600_000
    body = f'{{"data": "{blanks}"}}'.encode()
    tracemalloc.start()
    try:
        assert items_of(body, Headers()) == [bytes(1_200_000)]
        assert tracemalloc.get_traced_memory()[1] < upload_cost.TEXT_MEMORY * len(body)
    finally:
        tracemalloc.stop()


def test_the_cost_of_many_files_is_their_time_together_and_the_memory_of_the_dearest() -> None:
    def cost(item: bytes) -> Cost:
        return Cost(len(item), 1000 * len(item))

    body = json.dumps([encoded(b"x" * n) for n in (3, 5)] + ["?"]).encode()
    reading = Cost(len(body) * upload_cost.TEXT_NS / 1e6, len(body) * upload_cost.TEXT_MEMORY)
    assert cost_of(body, Headers(), cost) == Cost(8 + reading.decode_ms, 5000 + reading.memory_bytes)
    with pytest.raises(BadRequest):
        cost_of(b"{", Headers(), cost)


def test_a_function_of_whole_files_gets_whole_files() -> None:
    file = picture("PNG")

    def cost(item: bytes) -> Cost:
        return Cost(len(item), 0)

    for body, headers in [(gzip.compress(file, 1), ZIPPED), (json.dumps(encoded(file)).encode(), Headers())]:
        assert int(cost_of(body, headers, cost).decode_ms) in range(len(file), len(file) + 50)


def test_what_is_no_picture_costs_what_a_refusal_costs() -> None:
    assert cost_of(b"text", Headers({"content-type": "application/json"}), RECIPE.cost).decode_ms < 2 * REFUSED.decode_ms
    assert cost_of(b"\0" * 100_000, Headers(), RECIPE.cost) == REFUSED
