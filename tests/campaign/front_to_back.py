"""Read a zip as the servers' Java does: from header to header, without its directory."""

from __future__ import annotations

import struct
import zlib

HEADER = struct.Struct("<4sHHHHHLLLHH")
LOCAL, DIRECTORY, END, DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"
STREAMED, ZIP64 = 0x08, 1


def read(data: bytes) -> list[tuple[str, bytes]]:
    """Names (always UTF-8) and contents, in order. Raises ValueError where such a reader stops with an error."""
    found, at = [], 0
    while data[at : at + 4] == LOCAL:
        fields = HEADER.unpack_from(data, at)
        flags, method, packed, unpacked, name_bytes, extra_bytes = fields[2], fields[3], fields[7], fields[8], *fields[9:]
        at += HEADER.size
        name = data[at : at + name_bytes].decode("utf-8", "replace")
        packed, unpacked = _zip64(data[at + name_bytes : at + name_bytes + extra_bytes], packed, unpacked)
        at += name_bytes + extra_bytes
        if method == 8:
            stream = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                content = stream.decompress(data[at:], 64 << 20)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            if not stream.eof:
                raise ValueError("cut off")
            at = len(data) - len(stream.unused_data)
            at += _descriptor(data, at, stream) if flags & STREAMED else 0
        elif method == 0 and not flags & STREAMED:
            content = data[at : at + packed]
            at += packed
        else:
            raise ValueError(f"method {method}, flags {flags}")
        found.append((name, content))
    if data[at : at + 4] not in (DIRECTORY, END):
        raise ValueError("no header where one should be")
    return found


def _zip64(extra: bytes, packed: int, unpacked: int) -> tuple[int, int]:
    while len(extra) >= 4:
        tag, size = struct.unpack_from("<HH", extra)
        if tag == ZIP64 and size >= 16 and 0xFFFFFFFF in (packed, unpacked):
            unpacked, packed = struct.unpack_from("<QQ", extra, 4)
        extra = extra[4 + size :]
    return packed, unpacked


def _descriptor(data: bytes, at: int, stream: object) -> int:
    """The length of what follows a streamed entry's data: 12 or 20 bytes, with or without a signature."""
    signature = 4 if data[at : at + 4] == DESCRIPTOR else 0
    for length in (12, 20):
        if data[at + signature + length : at + signature + length + 4] in (LOCAL, DIRECTORY, END):
            return signature + length
    raise ValueError("no descriptor")
