"""Unpack a body that came with a Content-Encoding, where the gateway itself has to read it."""

from __future__ import annotations

import asyncio
import zlib

from slotwise.backends.interface import Refused
from slotwise.frontend.inference_request import InferenceRequest

TO_ZLIB = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # how zlib is told which of them it is
PIECE_BYTES = 64 * 1024


async def unpack(request: InferenceRequest) -> None:
    """Put the body as it was in its place, within the limit for bodies and for memory. Raises Refused (400, 413, 415, 429)."""
    encoding = request.headers.pop("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return
    if encoding not in TO_ZLIB:
        raise Refused(415, f"of content-encodings only {', '.join(TO_ZLIB)} are taken")
    unpacker, parts, size = zlib.decompressobj(TO_ZLIB[encoding]), list[bytes](), 0
    rest = memoryview(request.body)
    while rest and not unpacker.eof:
        piece, rest = bytes(rest[:PIECE_BYTES]), rest[PIECE_BYTES:]
        while piece or len(parts[-1]) == PIECE_BYTES:  # as long as this piece makes more
            try:
                parts.append(unpacker.decompress(piece, PIECE_BYTES))
            except zlib.error:
                raise Refused(400, f"the content-encoding is {encoding}, but the body is damaged or something else") from None
            size += len(parts[-1])
            request.refuse_if_large(size)
            request.hold_bytes(len(request.body) + size)
            piece = unpacker.unconsumed_tail
            await asyncio.sleep(0)  # others are answered meanwhile
    if rest or unpacker.unused_data or not unpacker.eof:
        raise Refused(400, f"the {encoding} body is cut off, or something follows it")
    request.body = b"".join(parts)
    request.hold_bytes(size)
