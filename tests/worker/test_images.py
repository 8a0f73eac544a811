"""Every odd picture on the handler: either its right answer or one clear refusal, and never a batch-mate's harm."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.worker import BadRequest, Headers, Settings, TooLarge, UnsupportedMedia
from slotwise.worker.inputs import flat, images
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.slot_errors import SlotError
from tests.support.pictures import BAD, CARRIES_EXIF, COLOURS, FINE, encoded, noisy, plain, png_chunk, png_header, transparent
from tests.worker.toy import ask, begin

MODEL = {
    "labels": list(COLOURS),
    "top_k": 3,
    "input": {"shape": [3, 32, 32], "resize": 36, "dtype": "uint8", "max_pixels": 4_000_000},
}


def brightest(pixels: Any) -> Any:
    """uint8 [b, h, w, 3] to logits: how much of each colour there is."""
    return pixels.astype(np.float32).mean(axis=(1, 2)) / 20  # [b, 3]


@pytest.fixture(scope="module")
def handler() -> Any:
    return classifier()


def classifier(**options: Any) -> Any:
    """The given image classifier on a model of numpy alone, which tells red, green and blue apart."""
    import importlib.util

    path = Path(__file__).parents[2] / "handlers" / "image_classifier.py"
    spec = importlib.util.spec_from_file_location("image_classifier", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotwise.worker.engines.load_engine", lambda *_: brightest)
        return begin(module.ImageClassifier(), Settings(batch_size=8, decode_threads=2, model={**MODEL, "options": options}))


def test_an_answer_can_have_the_shape_of_mms() -> None:
    first, bad = ask(classifier(answer="mms"), [encoded(plain("red")), b"no picture"])
    assert [set(entry) for entry in first.value] == [{"probability", "class"}] * 3
    assert first.value[0]["class"] == "red"
    assert bad.value["error"]["code"] == 400
    with pytest.raises(ValueError, match=r"options\.answer"):
        classifier(answer="other")


@pytest.mark.parametrize("name", FINE)
def test_an_odd_picture_gets_its_right_answer(handler: Any, name: str) -> None:
    make, colour = FINE[name]
    answer = ask(handler, [make()])[0]
    assert answer.code == 200, answer.value
    assert answer.value["label"] == colour
    assert list(answer.value["probabilities"].values()) == sorted(answer.value["probabilities"].values(), reverse=True)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_costs_nobody_else(handler: Any, name: str) -> None:
    make, code = BAD[name]
    first, bad, last = ask(handler, [encoded(plain("red")), make(), encoded(plain("blue"))])
    assert (first.value["label"], last.value["label"]) == ("red", "blue")
    assert (bad.code, bad.value["error"]["code"]) == (code, code)
    assert "/" not in bad.value["error"]["message"]


def test_all_of_them_at_once(handler: Any) -> None:
    bodies = {**{name: make() for name, (make, _) in FINE.items()}, **{name: make() for name, (make, _) in BAD.items()}}
    answers = dict(zip(bodies, ask(handler, bodies.values()), strict=True))
    assert {name: answers[name].value.get("label") for name in FINE} == {name: colour for name, (_, colour) in FINE.items()}
    assert {name: answers[name].code for name in BAD} == {name: code for name, (_, code) in BAD.items()}


def base64_of(body: bytes) -> str:
    return base64.b64encode(body).decode()


def test_several_pictures_in_one_json_body_are_answered_in_order_with_errors_in_place(handler: Any) -> None:
    red, blue = (base64_of(encoded(plain(colour))) for colour in ("red", "blue"))
    instances = [{"b64": red}, {"data": base64_of(b"no picture")}, blue, {"b64": base64_of(png_header(60_000, 60_000))}, 5]
    many, one, neighbour = ask(
        handler,
        [json.dumps({"instances": instances}).encode(), json.dumps({"data": blue}).encode(), encoded(plain("green"))],
    )
    assert many.code == one.code == neighbour.code == 200
    assert [answer.get("label") or answer["error"]["code"] for answer in many.value] == ["red", 400, "blue", 413, 400]
    assert (one.value["label"], neighbour.value["label"]) == ("blue", "green")


def test_a_list_of_one_picture_is_answered_by_a_list_of_one(handler: Any) -> None:
    red = base64_of(encoded(plain("red")))
    lists = [[red], {"instances": [{"b64": red}]}]
    answers = ask(handler, [json.dumps(one).encode() for one in [*lists, red, {"b64": red}, ["AAAA"]]])
    assert [[one["label"] for one in answer.value] for answer in answers[:2]] == [["red"]] * 2
    assert [answer.value["label"] for answer in answers[2:4]] == ["red"] * 2
    assert answers[4].code == 400
    words = ask(handler, [gzip.compress(json.dumps([red]).encode())], {0: {"accept": "text/plain", "content-encoding": "gzip"}})
    assert [one["label"] for one in words[0].value] == ["red"]


def test_a_gzipped_body_is_a_picture(handler: Any) -> None:
    bodies = [gzip.compress(encoded(plain("red"))), encoded(plain("blue")), encoded(plain("blue"))]
    headers = {0: {"Content-Encoding": "gzip"}, 1: {"Content-Encoding": "gzip"}}
    red, damaged, blue = ask(handler, bodies, headers)
    assert (red.value["label"], damaged.code, blue.value["label"]) == ("red", 400, "blue")


def test_every_file_of_a_form_is_an_item(handler: Any) -> None:
    files = {"file": [encoded(plain("red")), b"no picture", encoded(plain("blue"))]}
    items = handler.read(SimpleNamespace(body=b"", headers=Headers(), fields=files))
    assert [item.shape if isinstance(item, np.ndarray) else item.code for item in items] == [(32, 32, 3), 400, (32, 32, 3)]


def test_a_body_costs_what_all_its_pictures_cost(handler: Any) -> None:
    picture = encoded(noisy((1600, 1200)), "JPEG")
    one = handler.cost(picture, Headers())
    two = handler.cost(json.dumps([base64_of(picture)] * 2).encode(), Headers())
    assert 2 * one.decode_ms < two.decode_ms < 5 * one.decode_ms  # reading the base64 is a part of it
    assert one.memory_bytes < two.memory_bytes < 2 * one.memory_bytes
    with pytest.raises(BadRequest):
        handler.cost(b"{", Headers())


def test_grey_of_8_16_and_32_bits_is_the_same_grey() -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    eight = decode_rgb(encoded(Image.fromarray(ramp)))
    sixteen = decode_rgb(encoded(Image.fromarray(ramp.astype(np.uint16) * 257)))
    thirtytwo = decode_rgb(encoded(Image.fromarray(ramp.astype(np.int32) * 257), "TIFF"))
    assert (eight == ramp[:, :, None]).all()
    assert (sixteen == eight).all()
    assert (thirtytwo == eight).all()


def tiff(numbers: Any, photometric: int = 1, signed: bool = False, bits: int = 0) -> bytes:
    """Grey numbers as they are, uncompressed, with the tags that say how they are to be read."""
    height, width = numbers.shape
    picture = Image.frombytes("L", (width * numbers.itemsize, height), numbers.tobytes())
    tags = {262: photometric, 339: 2 if signed else 1}
    target = io.BytesIO()
    picture.save(target, "TIFF", tiffinfo=tags)
    body = bytearray(target.getvalue())
    (at,) = struct.unpack_from("<I", body, 4)
    for entry in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", body, at)[0], 12):
        tag, kind = struct.unpack_from("<HH", body, entry)
        if change := {256: width, 258: bits or 8 * numbers.itemsize, 262: photometric, 339: tags[339]}.get(tag):
            struct.pack_into("<I" if kind == 4 else "<H", body, entry + 8, change)
        elif tag == 262:
            struct.pack_into("<H", body, entry + 8, photometric)
    return bytes(body)


RAMP = np.array([[0, 16384, 32768, 49152, 65535]] * 2, np.uint16)


@pytest.mark.parametrize(
    "body",
    [
        tiff(RAMP, photometric=0),
        tiff((RAMP // 2).astype(np.int16), signed=True),
        tiff((RAMP // 512).astype(np.int8), signed=True),
        tiff(RAMP.astype(np.uint32) * 65537),
        tiff(RAMP.astype(np.int32) - 1, signed=True),
    ],
    ids=["white is 0", "16 bits signed", "8 bits signed", "32 bits", "below 0"],
)
def test_grey_that_would_be_another_picture_is_refused(body: bytes) -> None:
    with pytest.raises(UnsupportedMedia, match="save it with 8 bits"):
        decode_rgb(body)
    assert decode_rgb(tiff(RAMP))[0, :, 0].tolist() == [0, 64, 128, 192, 255]
    assert decode_rgb(tiff(RAMP.astype(np.uint8), photometric=0)).shape == (2, 5, 3)


def quarters(size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Four colours, so that no turn of it looks like another; their edges lie on the blocks of every codec."""
    picture = Image.new("RGB", size)
    half = size[0] // 2, size[1] // 2
    for i, colour in enumerate([(220, 30, 30), (30, 200, 40), (30, 40, 210), (240, 240, 240)]):
        left, top = (i % 2) * half[0], (i // 2) * half[1]
        picture.paste(colour, (left, top, left + half[0], top + half[1]))
    return picture


UNTURNED = {  # how an upright picture is stored, so that a viewer who heeds this orientation sees it upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", CARRIES_EXIF)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_format_ends_upright_in_every_orientation(kind: str, mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = quarters().convert(mode)
    if orientation in UNTURNED:
        stored = stored.transpose(UNTURNED[orientation])
    pixels = decode_rgb(encoded(stored, kind.split()[0], exif=exif, **CARRIES_EXIF[kind]))
    wanted = np.asarray(quarters().convert(mode).convert("RGB")).astype(int)
    assert pixels.shape == wanted.shape
    assert np.abs(pixels - wanted).mean() < 4


def test_a_deep_or_layered_picture_in_many_strips_is_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    deep, rgba = random.integers(0, 65536, (37, 53), dtype=np.uint16), random.integers(0, 256, (37, 53, 4), dtype=np.uint8)
    bodies = [
        encoded(Image.fromarray(deep)),
        encoded(Image.fromarray(deep >> 8)),  # 16 bits, but only 8 of them used
        encoded(Image.fromarray(deep.astype(">u2")), "TIFF"),
        encoded(Image.fromarray(random.integers(0, 65_536, (37, 53)).astype(np.int32)), "TIFF"),
        encoded(Image.fromarray(rgba)),
        encoded(Image.fromarray(rgba[..., 0]), transparency=17),
        encoded(Image.fromarray(rgba[..., :3]).quantize(16), transparency=bytes(range(0, 240, 15))),
        encoded(Image.fromarray(rgba[..., :3]).quantize(16), "GIF", transparency=3),
    ]
    whole = [decode_rgb(body) for body in bodies]
    monkeypatch.setattr(flat, "STRIP_PIXELS", 100)
    for body, wanted in zip(bodies, whole, strict=True):
        assert (decode_rgb(body) == wanted).all()


def grey_or_rgb(depth: int, rows: bytes, see_through: bytes, width: int = 4) -> bytes:
    """A PNG of one row whose tRNS names a level, or a colour."""
    head = struct.pack(">IIBBBBB", width, 1, depth, 2 if len(see_through) == 6 else 0, 0, 0, 0)
    chunks = {b"IHDR": head, b"tRNS": see_through, b"IDAT": zlib.compress(b"\0" + rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in chunks.items())


def test_the_level_that_a_png_names_as_see_through_is_white_at_every_depth() -> None:
    small = {1: (b"\x50", [0, 255, 0, 255]), 2: (b"\x1b", [0, 85, 170, 255]), 4: (b"\x01\x8f", [0, 17, 136, 255])}
    for depth, (rows, levels) in {**small, 8: (b"\0\x11\x88\xff", [0, 17, 136, 255])}.items():
        for i, level in enumerate(levels):
            body = grey_or_rgb(depth, rows, struct.pack(">H", level * ((1 << depth) - 1) // 255))
            wanted = [255 if one == level else one for one in levels]
            assert decode_rgb(body)[0, :, 0].tolist() == wanted, (depth, i)
    rgb = grey_or_rgb(8, bytes([7, 8, 9] * 2 + [9, 8, 7] * 2), struct.pack(">3H", 7, 8, 9))
    assert decode_rgb(rgb)[0].tolist() == [[255, 255, 255]] * 2 + [[9, 8, 7]] * 2


def test_of_16_bits_it_is_not_taken() -> None:
    for size in (1, 3):
        body = grey_or_rgb(16, bytes(8 * size), bytes(2 * size))
        with pytest.raises(UnsupportedMedia, match="save it with 8 bits"):
            decode_rgb(body)


def test_see_through_is_white_not_what_lies_underneath() -> None:
    assert decode_rgb(encoded(transparent()))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("side", [47, 55, 94, 95, 109])
def test_a_cut_of_the_whole_picture_stays_within_it(side: int) -> None:
    """Rounding put the left edge a hair outside of the picture, and a good picture was refused."""
    picture = Image.fromarray(np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8))
    for size in (28, 48, 224):
        cut, squeezed = Recipe(3, size, size, resize=size).fit(picture), Recipe(3, size, size).fit(picture)
        assert cut.tobytes() == squeezed.tobytes()


def test_cutting_while_resizing_is_cutting_after_resizing() -> None:
    """The recipe computes only the pixels that stay; torchvision's Resize and CenterCrop compute all of them."""
    picture = Image.fromarray(np.asarray(noisy((90, 60)).resize((640, 427), Image.Resampling.BICUBIC)))
    recipe = Recipe(3, 224, 224, resize=256)
    whole = picture.resize((round(640 * 256 / 427), 256), Image.Resampling.BILINEAR)
    left, top = (whole.width - 224) // 2, (256 - 224) // 2
    wanted = np.asarray(whole.crop((left, top, left + 224, top + 224))).astype(int)
    assert np.abs(np.asarray(recipe.fit(picture)).astype(int) - wanted).mean() < 1.5


def test_a_large_jpeg_is_decoded_smaller_but_never_below_the_hint() -> None:
    body = encoded(noisy((1600, 1200)), "JPEG")
    assert decode_rgb(body).shape == (1200, 1600, 3)
    h, w, _ = decode_rgb(body, size_hint=256).shape
    assert 256 <= h <= 600
    assert w * 3 == h * 4
    assert decode_rgb(encoded(noisy((300, 260)), "JPEG"), size_hint=256).shape == (260, 300, 3)
    for kind in ("RGB", "L", "CMYK"):
        assert decode_rgb(encoded(noisy((721, 700)).convert(kind), "JPEG"), size_hint=256).shape == (263, 271, 3)


@pytest.mark.parametrize("kind", ["RGB", "CMYK"])
@pytest.mark.parametrize("size", [(1600, 1200), (960, 720)])
def test_smaller_decoding_hardly_changes_the_item(size: tuple[int, int], kind: str) -> None:
    smooth = noisy((40, 30)).resize(size, Image.Resampling.BICUBIC).convert(kind)
    body, recipe = encoded(smooth, "JPEG", quality=92), Recipe(3, 224, 224, resize=256)
    small = recipe(body).astype(int)
    whole = np.asarray(recipe.fit(Image.open(io.BytesIO(body)).convert("RGB"))).astype(int)
    assert np.abs(small - whole).mean() < 1.5


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    body = encoded(noisy((300, 200)), "JPEG")
    with pytest.raises(TooLarge, match="bytes"):
        decode_rgb(body, max_bytes=1000)
    with pytest.raises(TooLarge, match="300 x 200"):
        decode_rgb(body, max_pixels=59_999)
    decode_rgb(body, max_pixels=60_000)
    monkeypatch.setattr(images, "MAX_SECONDS", -1.0)
    with pytest.raises(TooLarge, match="longer"):
        decode_rgb(encoded(noisy((300, 200))))


def test_random_damage_is_always_one_clear_refusal_or_a_picture() -> None:
    random = np.random.default_rng(1)
    bodies = [encoded(noisy((50, 40)), kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")]
    for i in range(600):
        body = bytearray(bodies[i % len(bodies)])
        for at in random.integers(0, len(body), 4):
            body[at] = random.integers(256)
        try:
            pixels = decode_rgb(bytes(body[: random.integers(1, len(body) + 1)] if i % 2 else body), max_pixels=10**6)
        except (BadRequest, TooLarge, UnsupportedMedia):
            continue
        assert pixels.dtype == np.uint8


def test_weights_that_take_floats_get_them_normalised(handler: Any) -> None:
    handler.floats, handler.mean, handler.std = True, np.float32([127.5] * 3), np.float32([127.5] * 3)
    try:
        inputs = handler.collate([np.full((4, 5, 3), 255, np.uint8), np.zeros((4, 5, 3), np.uint8)])
    finally:
        handler.floats = False
    assert inputs.shape == (2, 3, 4, 5)
    assert inputs.dtype == np.float32
    assert (inputs[0] == 1).all()
    assert (inputs[1] == -1).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            gzip.compress(b"x" * 100, mtime=0),
            "the body looks like gzip: send it with the header Content-Encoding: gzip, or unpacked",
        ),
        (
            base64.b64encode(bytes(range(256))),
            'the body looks like base64: send the file\'s own bytes, or JSON, {"data": "BASE64"}',
        ),
        (
            b"data:image/png;base64,iVBORw0KGgo=",
            'the body looks like a data: URL: send the file\'s own bytes, or JSON, {"data": "data:..."}',
        ),
        (
            b'{"pixels": [1, 2]}',
            'the body looks like JSON without a picture: send the file\'s own bytes, or {"data": "BASE64"}',
        ),
        (b"<!DOCTYPE html><html>", "this is an HTML page: send a JPEG, PNG, WebP, GIF, BMP or TIFF"),
        (b"abcdefghijklmnopqrstuvwxyz", "the body is not a picture: send a JPEG, PNG, WebP, GIF, BMP or TIFF"),
    ],
)
def test_what_is_no_picture_is_told_what_it_looks_like(body: bytes, message: str) -> None:
    with pytest.raises(SlotError) as refused:
        decode_rgb(body)
    assert str(refused.value) == message
