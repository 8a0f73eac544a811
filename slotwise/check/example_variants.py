"""Make variants of an archive's examples, so that there are enough bodies with different answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

from slotwise.bench.bodies import RequestBody


def variants(body: RequestBody) -> Iterator[RequestBody]:
    """Bodies of the same kind with other content, for pictures, JSON, texts and arrays: so a wrong slot's answer is noticed."""
    makers: dict[str, Callable[[bytes], Iterator[tuple[str, bytes]]]] = {"image": _pictures}
    makers |= {"json": _reversed_parts, "npy": _flipped_array, "text/plain": _reversed_words}
    for kind, maker in makers.items():
        if kind in body.content_type or body.name.endswith(f".{kind}"):
            try:
                yield from (RequestBody(data, body.content_type, name=f"{body.name} {how}") for how, data in maker(body.data))
            except Exception:  # an example that cannot be varied is still an example
                return


def _pictures(data: bytes) -> Iterator[tuple[str, bytes]]:
    from PIL import Image, ImageOps  # noqa: PLC0415  slow to import

    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    turned = {f"turned by {angle} degrees": picture.rotate(angle, expand=True) for angle in (90, 180)}
    for how, changed in {**turned, "inverted": ImageOps.invert(picture), "mirrored": ImageOps.mirror(picture)}.items():
        target = io.BytesIO()
        changed.save(target, "PNG")
        yield how, target.getvalue()


def _reversed_parts(data: bytes) -> Iterator[tuple[str, bytes]]:
    def turn(value: Any, words: bool) -> Any:
        if isinstance(value, list):
            numbers = value and all(isinstance(item, int | float) for item in value)
            return value[::-1] if numbers and not words else [turn(item, words) for item in value]
        if isinstance(value, str):
            return " ".join(value.split()[::-1]) if words and len(value.split()) > 1 else value
        return {key: turn(item, words) for key, item in value.items()} if isinstance(value, dict) else value

    content = json.loads(data)
    for how, words in (("numbers", False), ("words", True)):
        if (turned := turn(content, words)) != content:
            yield f"with its {how} reversed", json.dumps(turned).encode()


def _reversed_words(data: bytes) -> Iterator[tuple[str, bytes]]:
    words = data.decode().split()
    if words != words[::-1]:
        yield "with its words reversed", " ".join(words[::-1]).encode()


def _flipped_array(data: bytes) -> Iterator[tuple[str, bytes]]:
    import numpy as np  # noqa: PLC0415  slow to import

    array = np.load(io.BytesIO(data), allow_pickle=False)
    for how, changed in {"reversed": array[..., ::-1], "upside down": array[::-1]}.items():
        target = io.BytesIO()
        np.save(target, np.ascontiguousarray(changed))
        yield how, target.getvalue()
