"""Unpack a tarball that somebody else has made."""

from __future__ import annotations

import tarfile
from pathlib import Path

from slotwise.errors import SlotwiseError

MAX_UNPACKED_BYTES = 32 << 30


def unpack(tarball: Path, folder: Path) -> None:
    """Unpack a tarball; nothing of it lands outside the folder. Raises SlotwiseError."""
    try:
        with tarfile.open(tarball) as source:
            size = 0
            for member in source:
                size += member.size
                if size > MAX_UNPACKED_BYTES:
                    raise SlotwiseError(f"{tarball.name} unpacks to too much", f"at most {MAX_UNPACKED_BYTES >> 30} GiB")
            source.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SlotwiseError(f"{tarball.name} is no tarball that can be unpacked: {error}", "get a fresh copy") from error
