"""Is a zip file safe to unpack? Its directory is judged before a byte of it is written anywhere."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path, PurePosixPath

from slotwise.errors import SlotwiseError

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 32 << 30
MAX_RATIO = 200  # unpacked to packed; real weights stay below 10
SMALL_BYTES = 1 << 20  # a file below this may be as compressible as it likes
LOCAL_HEADER_BYTES = 30
DESCRIPTOR_BYTES = 24  # what may follow an entry whose size was not known when it was written
DESCRIPTOR_FLAG, ENCRYPTED_FLAG = 0x08, 0x01
STRANGER = "do not serve it; get it again from where it was built"


def check_entries(path: Path, source: zipfile.ZipFile) -> None:
    """Raise SlotwiseError for an entry that could escape, hide, repeat, or fill the disk."""
    entries = source.infolist()
    if len(entries) > MAX_ENTRIES:
        raise SlotwiseError(f"{path.name} has {len(entries)} files, more than {MAX_ENTRIES}", STRANGER)
    seen: set[str] = set()
    for entry in entries:
        fault = _fault(entry)
        if not fault and entry.filename.rstrip("/").casefold() in seen:
            fault = "is in it twice"
        if fault:
            raise SlotwiseError(f"{path.name}: {entry.filename[:100]!r} {fault}", STRANGER)
        seen.add(entry.filename.rstrip("/").casefold())
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES:
        raise SlotwiseError(f"{path.name} would unpack to {unpacked >> 30} GiB", STRANGER)
    _check_layout(path, source, entries)


def _fault(entry: zipfile.ZipInfo) -> str:
    """What is wrong with one entry ("" where nothing is)."""
    name, mode = entry.orig_filename, entry.external_attr >> 16
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(c in name for c in "\\\0:") or "//" in name:
        return "would be unpacked outside its folder"
    if not name.isprintable():
        return "has a name that cannot be printed"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device, not a file"
    if entry.flag_bits & ENCRYPTED_FLAG:
        return "is encrypted"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in a way that the servers do not read"
    if entry.file_size > SMALL_BYTES and entry.file_size > MAX_RATIO * max(1, entry.compress_size):
        return f"would grow {entry.file_size // max(1, entry.compress_size)} times when unpacked"
    return ""


def _check_layout(path: Path, source: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> None:
    """The entries must follow one another from byte 0 to the directory: what lies between or overlaps is not listed."""
    assert source.fp is not None
    expected, slack = 0, 0
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if not expected <= entry.header_offset <= expected + slack:
            raise SlotwiseError(f"{path.name}: something unlisted lies before {entry.filename[:100]!r}", STRANGER)
        source.fp.seek(entry.header_offset + LOCAL_HEADER_BYTES - 4)
        name_bytes, extra_bytes = (int.from_bytes(source.fp.read(2), "little") for _ in range(2))
        expected = entry.header_offset + LOCAL_HEADER_BYTES + name_bytes + extra_bytes + entry.compress_size
        slack = DESCRIPTOR_BYTES if entry.flag_bits & DESCRIPTOR_FLAG else 0
    if not expected <= source.start_dir <= expected + slack:
        raise SlotwiseError(f"{path.name}: something unlisted lies behind its last file", STRANGER)
