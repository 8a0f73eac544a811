"""Tell the bytecode that Python itself wrote beside an archive's modules from bytecode that came with the archive.

Python runs `__pycache__/h.cpython-311.pyc` in place of `h.py` where its header says that it fits, and some headers always do
(PEP 552). Every worker writes such files at its first import. So what counts is what is in them.
"""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path

HEADER_BYTES = 16
HASHED, CHECKED = 0b01, 0b10  # flags: it holds the source's hash, not its time and size; that hash is compared at an import


def cached(source: Path) -> Path:
    """Where this Python looks for the bytecode of a module."""
    return Path(importlib.util.cache_from_source(str(source)))


def runs_other_code(source: Path) -> bool:
    """Whether Python would run bytecode in place of this module that is not what the module compiles to."""
    bytecode = cached(source)
    if not bytecode.is_file():
        return False
    data, text = bytecode.read_bytes(), source.read_bytes()
    if not _fits(data, source, text):
        return False
    try:
        code = marshal.loads(data[HEADER_BYTES:])
        return bool(code != compile(text, str(source), "exec", dont_inherit=True))
    except (ValueError, TypeError, EOFError, SyntaxError):
        return True


def _fits(data: bytes, source: Path, text: bytes) -> bool:
    """Whether the header lets Python run it; otherwise Python compiles the source and writes the bytecode anew."""
    if len(data) < HEADER_BYTES or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & HASHED:
        return not flags & CHECKED or data[8:16] == importlib.util.source_hash(text)
    status = source.stat()
    stated = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little"))
    return stated == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
