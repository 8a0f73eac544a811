"""Estimate what decoding a request's files will take, from the beginning of each: an estimate has to be cheap itself.

Of a file in base64 or gzip only the beginning is unpacked. Where that does not tell (a TIFF may have its header at its end),
more is: of base64, which is no larger than what was sent, the whole; of gzip, which may be a thousand times as large,
MOST_LOOK_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slotwise.worker.budget import Cost
from slotwise.worker.inputs import packed
from slotwise.worker.inputs.json_files import base64_of, elements, is_json, is_unquoted
from slotwise.worker.slot_errors import SlotError, TooLarge

LOOK_BYTES = 64 << 10  # of each file at first
MOST_LOOK_BYTES = 4 << 20  # of a gzip body
TEXT_NS, TEXT_MEMORY = 7, 4  # the same for each byte of JSON or base64

FileCost = Callable[..., Cost | None]  # (file), or (its beginning, the most bytes that it has): then None where it cannot tell


def cost_of(body: bytes, headers: Mapping[str, str], cost: FileCost) -> Cost:
    """The cost of all files of a body: the sum of their times, and the memory of the largest.

    cost: of one file. It is called with a whole file, or with the beginning of one and the most bytes that the file has; then
    it may return None, and is called with the whole. Raises what items_of raises, and TooLarge where a gzip body does not tell.
    """
    if not packed.is_gzipped(headers):
        return _of_plain(body, headers, cost)
    size = packed.unpacked_size(body)
    files = None
    for most in (LOOK_BYTES, MOST_LOOK_BYTES):
        start = packed.beginning(body, most)
        if len(start) < most:
            files, size = _of_plain(start, headers, cost), len(start)
        elif not is_json(start) and not is_unquoted(start, headers):
            files = _of_beginning(start, size, cost)
        if files is not None:
            return Cost(files.decode_ms + size * packed.UNPACK_NS / 1e6, files.memory_bytes + size * packed.UNPACK_MEMORY)
    raise TooLarge(f"the first {MOST_LOOK_BYTES} bytes of this gzip body do not tell what it costs: send it without gzip")


def _of_plain(body: bytes, headers: Mapping[str, str], cost: FileCost) -> Cost:
    """The cost of a body without a content-encoding."""
    if is_json(body):
        files = list(_of_elements(elements(body), cost))
    elif is_unquoted(body, headers):
        files = list(_of_elements([body.decode("ascii")], cost)) or [_of_whole(body, cost)]
    else:
        return _of_whole(body, cost)
    ms = sum(file.decode_ms for file in files) + len(body) * TEXT_NS / 1e6
    return Cost(ms, max((file.memory_bytes for file in files), default=0) + len(body) * TEXT_MEMORY)


def _of_elements(elements: list[Any], cost: FileCost) -> Iterator[Cost]:
    """The cost of every element that holds a file."""
    for element in elements:
        text = base64_of(element)
        if isinstance(text, SlotError):
            continue
        try:
            if len(text) <= LOOK_BYTES:
                yield _of_whole(packed.from_base64(text), cost)
            else:
                of_beginning = _of_beginning(packed.beginning_of_base64(text, LOOK_BYTES), len(text), cost)
                yield of_beginning or _of_whole(packed.from_base64(text), cost)
        except ValueError:  # no base64: nothing of it is decoded
            continue


def _of_beginning(start: bytes, size: int, cost: FileCost) -> Cost | None:
    """What a file costs that begins so and has at most `size` bytes; None where that does not tell."""
    try:
        return cost(start, size)
    except TypeError:  # a function of whole files only
        return None


def _of_whole(file: bytes, cost: FileCost) -> Cost:
    return cost(file) or Cost(0.0, 0)
