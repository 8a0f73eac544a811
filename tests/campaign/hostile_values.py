"""Values that nobody expects: for JSON, for names, for bytes. Each is drawn from a seeded generator."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "C:\\x",
        "é",
        "e\u0301",
        "\u202egnp.exe",
        "日本",
        "\ud800",
        "😀",
    ),
    *("x" * 5000, "%s%n", "${jndi:x}", "nan", "NaN", "1e999", "-0", "true", "null", "[", "\x1b[2J", "a\r\nset-cookie: b"),
)
NUMBERS = (0, -1, 1, 0.5, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf)


def value(draw: Random, depth: int = 3) -> Any:
    """Any value that JSON may hold."""
    kind = draw.randrange(8 if depth else 5)
    if kind == 0:
        return draw.choice(NUMBERS)
    if kind == 1:
        return draw.choice(TEXTS)
    if kind == 2:
        return draw.choice((None, True, False, [], {}, [[]], {"": None}))
    if kind == 3:
        return "".join(chr(draw.choice((draw.randrange(128), draw.randrange(0xD800)))) for _ in range(draw.randrange(20)))
    if kind == 4:
        return draw.randrange(-300, 300)
    if kind == 5:
        return [value(draw, depth - 1) for _ in range(draw.randrange(6))]
    if kind == 6:
        return {str(draw.choice(TEXTS[:20])): value(draw, depth - 1) for _ in range(draw.randrange(5))}
    return nested(draw.choice((2, 50, 900, 5000)), draw.choice((0, "x", None)))


def nested(depth: int, inner: Any) -> Any:
    """A list in a list in a list ..."""
    for _ in range(depth):
        inner = [inner]
    return inner


def changed(draw: Random, content: Any) -> Any:
    """The same JSON with one thing in it replaced, removed, repeated or renamed."""
    if isinstance(content, dict) and content and draw.random() < 0.85:
        key = draw.choice(sorted(content))
        kind = draw.randrange(8)
        if kind == 0:
            return {name: one for name, one in content.items() if name != key}
        if kind == 1:
            return {**content, str(draw.choice(TEXTS[:20])): value(draw)}
        return {**content, key: changed(draw, content[key])}
    if isinstance(content, list) and content and draw.random() < 0.85:
        at = draw.randrange(len(content))
        kind = draw.randrange(8)
        if kind == 0:
            return content[:at] + content[at + 1 :]
        if kind == 1:
            return content[:at] + content[at : at + 1] * draw.choice((2, 3, 70, 1100)) + content[at + 1 :]
        return [*content[:at], changed(draw, content[at]), *content[at + 1 :]]
    return value(draw)


def written(content: Any) -> bytes:
    """JSON as bytes, or "[[[[..." where it is nested too deeply to be written."""
    try:
        return json.dumps(content).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 100_000


def mutated(draw: Random, data: bytes) -> bytes:
    """The same bytes with a few flipped, cut, repeated, inserted or removed."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        size = draw.choice((1, 2, 4, 16, 200))
        kind = draw.randrange(7)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + draw.randbytes(size) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + size :]
        elif kind == 3:
            data = data[:at] + data[at : at + size] * 2 + data[at + size :]
        elif kind == 4:
            data = data[:at] + draw.choice((b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80")) + data[at + 1 :]
        elif data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    return data
