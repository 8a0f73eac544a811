"""Unpack gzip and base64 within limits: the whole, or only the beginning, from which its cost is estimated.

A gzip body says at its end how many bytes it unpacks to. It is never unpacked further than that, so what it says is the most
that it can cost.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Mapping
from dataclasses import replace

from slotwise.worker.budget import Cost
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import BadRequest, TooLarge, UnsupportedMedia

MAX_UNPACKED_BYTES = 64 << 20  # of one gzip body
GZIP = 31  # to zlib this means gzip with the largest window
MOST_A_BYTE = 1032  # deflate's best: 258 bytes in two bits
UNPACK_NS, UNPACK_MEMORY = 4, 2  # for each byte that gzip unpacks to: time, and bytes in use at once
URL_ALPHABET = bytes.maketrans(b"-_", b"+/")
BLANKS = b" \t\r\n\v\f"


def plain(request: Request) -> Request:
    """The request as it was before its client packed it, without a content-encoding: what a handler sees.

    Raises UnsupportedMedia where it has another encoding than gzip, or is a form of several parts; else as `unpacked`.
    """
    if not request.headers.encoding or not is_gzipped(request.headers):
        return request
    if request.more or sum(map(len, request.fields.values())) > 1:
        raise UnsupportedMedia("the parts of a form are taken as they are, without a content-encoding")
    body = unpacked(request.body)
    headers = Headers({name: value for name, value in request.headers.items() if name != "content-encoding"})
    return replace(request, body=body, headers=headers, fields={name: [body] for name in request.fields})


def unpacking_cost(request: Request) -> Cost | None:
    """What unpacking the request costs at most; None where it is not packed."""
    if request.headers.get("content-encoding", "").strip().lower() not in ("gzip", "x-gzip"):
        return None
    size = unpacked_size(request.body)
    return Cost(size * UNPACK_NS / 1e6, size * UNPACK_MEMORY)


def is_gzipped(headers: Mapping[str, str]) -> bool:
    """Whether a body is gzipped. Raises UnsupportedMedia where it has another content-encoding."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise UnsupportedMedia("of content-encodings only gzip is taken")
    return encoding.endswith("gzip")


def unpacked(body: bytes) -> bytes:
    """The whole of a gzip body. Raises BadRequest where it is damaged, TooLarge where it is more than MAX_UNPACKED_BYTES."""
    most = unpacked_size(body)
    unpacker = zlib.decompressobj(GZIP)
    whole = _decompressed(unpacker, body, most + 1)
    if len(whole) > MAX_UNPACKED_BYTES:
        raise TooLarge(f"the body unpacks to more than the {MAX_UNPACKED_BYTES} bytes that are taken")
    if len(whole) > most or not unpacker.eof or unpacker.unused_data:
        raise BadRequest("the gzip body is cut off, or something follows it")
    return whole


def unpacked_size(body: bytes) -> int:
    """The most bytes that `unpacked(body)` unpacks. Nothing is unpacked to know it."""
    return min(int.from_bytes(body[-4:], "little"), MAX_UNPACKED_BYTES, MOST_A_BYTE * len(body))


def beginning(body: bytes, most: int) -> bytes:
    """At most `most` bytes of what a gzip body unpacks to. Raises BadRequest where damage shows before that."""
    head = _decompressed(zlib.decompressobj(GZIP), body, most)
    return head if len(head) == most else unpacked(body)  # all there is: then it is whole, or it is damaged


def from_base64(text: str) -> bytes:
    """The bytes of base64 in either alphabet, with or without blanks and the = at the end. Raises ValueError."""
    packed = text.encode("ascii").translate(URL_ALPHABET, BLANKS).rstrip(b"=")
    return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)


def beginning_of_base64(text: str, most: int) -> bytes:
    """The bytes of the first `most` characters, or a few less. Raises ValueError."""
    packed = text[:most].encode("ascii").translate(URL_ALPHABET, BLANKS)
    return binascii.a2b_base64(packed[: len(packed) // 4 * 4], strict_mode=True)


def _decompressed(unpacker: zlib._Decompress, body: bytes, most: int) -> bytes:
    try:
        return unpacker.decompress(body, most)
    except zlib.error:
        raise BadRequest("the content-encoding is gzip, but the body is damaged or something else") from None
