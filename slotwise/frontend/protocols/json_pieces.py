"""Read and write large JSON in many small calls, and say beforehand how much memory reading takes.

Python's scanner is one call of C code that lets no other thread run, unless it calls Python for something: so it is given
functions for numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # as json's own scanner in Python has it
from typing import Any, TypeVar

T = TypeVar("T")

LIST_BYTES, OBJECT_BYTES, TEXT_BYTES = 96, 288, 64  # of an empty one, and its place in what holds it


def _real(text: str) -> float:
    return float(text)


def _whole(text: str) -> int:
    return int(text)


def _number(text: str) -> None:
    """A number of which only the place is wanted."""


_PLACES = json.JSONDecoder(parse_float=_number, parse_int=_number)
_blank = re.compile(r"[ \t\n\r]*").match


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def loads(data: bytes) -> Any:
    """As json.loads, but other threads run meanwhile. Raises ValueError or RecursionError."""
    return json.loads(data, parse_float=_real, parse_int=_whole)


def check(text: str) -> None:
    """Raise ValueError or RecursionError where a text is no JSON. NaN and infinity are none."""
    json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_constant)


def reading_bytes(data: bytes | memoryview, number_bytes: int) -> int:
    """The most memory that reading this JSON takes beside itself. number_bytes: what a number becomes, with its place."""
    data = bytes(data)
    text = len(data) if data.isascii() else 4 * len(data)
    containers = data.count(b"[") * LIST_BYTES + data.count(b"{") * OBJECT_BYTES
    return 2 * text + data.count(b'"') // 2 * TEXT_BYTES + containers + (data.count(b",") + 1) * number_bytes


def elements_of(
    text: str, name: str, most: int, make: Callable[[Any, str], T], beside: dict[str, Any] | None = None
) -> list[T] | None:
    """What `make` makes of each element of the list `name` in a JSON object; None where it has no such list.

    make: is given the element without its numbers, and its own text. Where there are more than `most`, only the first ones
    are made. beside: gets the object's other members, without the numbers in them. Raises ValueError or RecursionError where
    the text is no JSON object.
    """
    at, elements = _token(text, 0, "{"), None
    more, at = text[at : at + 1] != "}", at + (text[at : at + 1] == "}")
    while more:
        key, at = scanstring(text, _token(text, at, '"', blank=False), True)
        at = _token(text, _skip(text, at), ":")
        if key == name and text[at : at + 1] == "[":
            elements, at = _list(text, at, most, make)
        else:
            begins = at
            value, at = _PLACES.raw_decode(text, at)
            elements = None if key == name else elements  # the last one counts, as for json
            if beside is not None:
                beside[key] = value if value is not None else loads(text[begins:at].encode())  # null, or a number
        more, at = _another(text, at, "}")
    if _skip(text, at) != len(text):
        raise ValueError("something follows the JSON")
    return elements


def _list(text: str, at: int, most: int, make: Callable[[Any, str], T]) -> tuple[list[T], int]:
    found: list[T] = []
    at = _skip(text, at + 1)
    more, at = text[at : at + 1] != "]", at + (text[at : at + 1] == "]")
    while more:
        value, end = _PLACES.raw_decode(text, at)
        if len(found) < most:
            found.append(make(value, text[at:end]))
        more, at = _another(text, end, "]")
    return found, at


def _another(text: str, at: int, end: str) -> tuple[bool, int]:
    """Whether a comma comes and not the end; and where what follows begins."""
    at = _skip(text, at)
    sign = text[at : at + 1]
    if sign != end and sign != ",":
        raise ValueError("a comma is missing")
    return sign == ",", _skip(text, at + 1) if sign == "," else at + 1


def _token(text: str, at: int, sign: str, blank: bool = True) -> int:
    """Where what follows this sign begins."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} is missing")
    return _skip(text, at + 1) if blank else at + 1


def _skip(text: str, at: int) -> int:
    matched = _blank(text, at)
    return matched.end() if matched else at


def dumped(value: Any) -> str:
    """As json.dumps; not only in ASCII."""
    return json.dumps(value, ensure_ascii=False)


def dumped_list(values: Sequence[Any]) -> str:
    """The same of a list, an element a call."""
    return f"[{', '.join(map(dumped, values))}]"
