"""Bodies that nobody should send: pictures, tensors, JSON and forms, whole and damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
from PIL import Image

from slotwise.archive.local_model import LocalRequest
from tests.campaign.hostile_values import NUMBERS, TEXTS, changed, mutated, value, written

TYPES = (
    *(
        "application/octet-stream",
        "image/png",
        "image/jpeg",
        "application/json",
        "application/json; charset=utf-16",
        "text/plain",
    ),
    *(
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "",
        "\xff",
        "a/b; c*=utf-8''%ff",
    ),
)
HEADERS = {
    "accept": ("text/plain", "*/*", "application/json;q=x", ""),
    "x-deadline-ms": ("nan", "-1", "1e999", "99999999999999", "x", "4102444800000"),
    "explain": ("True", "False", "x"),
    "content-encoding": ("gzip", "br"),
    "x-request-id": TEXTS[:9],
}
FIELD_NAMES = ("data", "body", "file", "image", "x", "", "é", 'a"b', "body")


@cache
def drawings() -> tuple[bytes, ...]:
    """Small pictures of every kind that Pillow writes, odd modes, sizes and several frames among them."""
    grey = Image.fromarray(np.arange(28 * 28, dtype=np.uint8).reshape(28, 28))
    found = []
    kinds = [
        (kind, {})
        for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "TGA", "JPEG2000", "PCX", "SGI", "DDS")
    ]
    for kind, options in [
        *kinds,
        ("JPEG", {"progressive": True}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("PNG", {"interlace": 1}),
    ]:
        for mode in ("L", "RGB", "RGBA", "CMYK", "P", "1", "I;16", "F", "LA"):
            target = io.BytesIO()
            try:
                grey.convert(mode).save(target, kind, **options)
            except (OSError, ValueError, KeyError):
                continue
            found.append(target.getvalue())
    for kind in ("GIF", "WEBP", "TIFF", "PNG"):
        target = io.BytesIO()
        grey.save(target, kind, save_all=True, append_images=[grey.rotate(90)] * 3)
        found.append(target.getvalue())
    for size in ((1, 1), (1, 5000), (5000, 1), (9000, 9000), (65500, 2)):
        target = io.BytesIO()
        Image.new("L", size).save(target, "PNG")
        found.append(target.getvalue())
    return tuple(found)


@cache
def arrays() -> tuple[bytes, ...]:
    """Tensors as .npy and as JSON, of shapes and types that a model may not take."""
    found = []
    for kind in ("<f4", ">f4", "<f8", "<i8", "|b1", "<c8", "<U4", "<M8[s]", "|V8", "<f2"):
        for shape in ((1, 28, 28), (28, 28), (784,), (0,), (), (1, 1, 28, 28, 1), (2, 28, 28)):
            target = io.BytesIO()
            np.save(target, np.zeros(shape, kind), allow_pickle=False)
            found.append(target.getvalue())
    for flat in ([0.5] * 784, [[0.5] * 28] * 28, [[[0.5] * 28] * 28]):
        found.append(json.dumps(flat).encode())
    return tuple(found)


def seeds(model: str, good: Sequence[bytes]) -> list[bytes]:
    """What is damaged for this model: its own good bodies, and others of their kind."""
    others = {"mnist": arrays(), "translation": ()}.get(model, drawings())
    return [*good, *others]


def hostile(draw: Random, bodies: Sequence[bytes]) -> LocalRequest:
    """One request: a body, headers, parameters of the address."""
    body = _body(draw, draw.choice(bodies))
    headers = {"content-type": draw.choice(TYPES)}
    for name, values in HEADERS.items():
        if draw.random() < 0.05:
            headers[name] = draw.choice(values)
    kind = draw.randrange(10)
    if kind == 0:
        body, headers["content-type"] = _form(draw, body)
    query = {draw.choice(FIELD_NAMES): draw.choice(TEXTS[:9])} if kind == 1 else {}
    return body, headers, query


def _body(draw: Random, body: bytes) -> bytes:
    kind = draw.randrange(8)
    if kind < 3:
        return mutated(draw, body)
    if kind == 3:
        return body
    if kind == 4:
        return written(value(draw))
    if kind == 5:
        return draw.randbytes(draw.choice((0, 1, 7, 3136, 5000)))
    if kind == 6 and len(body) == 3136:  # a tensor with odd numbers in it
        array = np.frombuffer(body, "<f4").copy()
        with np.errstate(all="ignore"):
            array[draw.randrange(784)] = np.float32(draw.choice(NUMBERS))
        return array.tobytes()
    try:
        return written(changed(draw, json.loads(body)))
    except (ValueError, RecursionError):
        return (
            draw.choice((b"", b"{", b"null", b"\xff\xfe[\x001\x00]\x00", b'{"b64": "x"}', b'{"data": {"b64": ""}}')) + body[:99]
        )


def _form(draw: Random, body: bytes) -> tuple[bytes, str]:
    """A form with the body in it, often a damaged one."""
    boundary = draw.choice(("b", "x" * 70, "x" * 71, "a b", "é", "--"))
    lines = []
    for _ in range(draw.choice((1, 1, 2, 5, 300))):
        name = draw.choice(FIELD_NAMES)
        head = draw.choice(
            (f'form-data; name="{name}"', f"form-data; name*=utf-8''{name}", f"form-data; name*0={name}", "form-data", "x")
        )
        lines.append(f"--{boundary}\r\ncontent-disposition: {head}\r\n\r\n".encode("utf-8", "replace") + body[:9000] + b"\r\n")
    form = b"".join(lines) + f"--{boundary}--\r\n".encode()
    stated = draw.choice((boundary, boundary, f'"{boundary}"', "other", "a; boundary=b"))
    return (mutated(draw, form) if draw.random() < 0.5 else form), f"multipart/form-data; boundary={stated}"
