"""Unpack a tarball that somebody else has made."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path

from slotwise.errors import SlotwiseError

MAX_UNPACKED_BYTES = 32 << 30
BLOCK_BYTES = 1 << 20
DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)  # what Python raises on a damaged file


def unpack(tarball: Path, folder: Path) -> None:
    """Unpack a tarball that is whole; nothing of it lands outside the folder. Raises SlotwiseError."""
    try:
        with tarfile.open(tarball) as source:
            size = 0
            for member in source:
                size += member.size
                if size > MAX_UNPACKED_BYTES:
                    raise SlotwiseError(f"{tarball.name} unpacks to too much", f"at most {MAX_UNPACKED_BYTES >> 30} GiB")
            _check_end(source)
            source.extractall(folder, filter="data")
    except DAMAGE as error:
        raise SlotwiseError(f"{tarball.name} is no tarball that can be unpacked: {error}", "get a fresh copy") from error


def _check_end(source: tarfile.TarFile) -> None:
    """Raise one of DAMAGE where its last file is followed by what is no end, or a checksum behind it says that it is damaged.

    tarfile itself ends there without a word, and gzip's checksum is behind the end, where it does not read.
    """
    file = source.fileobj
    assert file is not None
    file.seek(source.offset)
    if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError("a header in it is damaged")
    read = 0
    while block := file.read(BLOCK_BYTES):
        read += len(block)
        if read > MAX_UNPACKED_BYTES:
            raise tarfile.ReadError("too much lies behind its end")
