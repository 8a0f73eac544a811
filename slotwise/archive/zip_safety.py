"""Check that a zip file is safe to unpack, before a byte of it is written anywhere."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from slotwise.errors import SlotwiseError
from slotwise.files.tarball import MAX_UNPACKED_BYTES

MAX_ENTRIES = 10_000
MAX_RATIO = 200  # unpacked to packed; real weights stay below 10
SMALL_BYTES = 1 << 20  # a smaller file may have any ratio
BLOCK_BYTES = 1 << 14  # read at once; inflated it has 16 MiB at most
HEADER = struct.Struct("<6xHH8xLLHH")  # flags, method, sizes packed and unpacked, lengths of name and extra
ZIP64_TAG = 1
DESCRIPTOR_BYTES = 24  # at most
DESCRIPTOR_FLAG, ENCRYPTED_FLAG, UTF8_FLAG = 0x08, 0x01, 0x800
# What Python's zipfile raises on a damaged file
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, ValueError)
ADVICE = "do not serve it; get it again from where it was built"


def check_entries(path: Path, source: zipfile.ZipFile) -> None:
    """Raise SlotwiseError for an entry that could escape, hide, repeat, or fill the disk."""
    entries = source.infolist()
    if len(entries) > MAX_ENTRIES:
        raise SlotwiseError(f"{path.name} has {len(entries)} files, more than {MAX_ENTRIES}", ADVICE)
    seen: set[str] = set()
    for entry in entries:
        fault = _fault(entry)
        if not fault and entry.filename.rstrip("/").casefold() in seen:
            fault = "is in it twice"
        if fault:
            raise SlotwiseError(f"{path.name}: {entry.filename[:100]!r} {fault}", ADVICE)
        seen.add(entry.filename.rstrip("/").casefold())
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES:
        raise SlotwiseError(f"{path.name} would unpack to {unpacked >> 30} GiB", ADVICE)
    _check_layout(path, source, entries)


def read_small(source: zipfile.ZipFile, name: str, most: int = SMALL_BYTES) -> bytes:
    """A file of the archive that is to be at most `most` bytes, whatever its directory says. Raises BadZipFile, KeyError."""
    with source.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise zipfile.BadZipFile(f"{name[:100]!r} is over {most} bytes")
    return data


def _fault(entry: zipfile.ZipInfo) -> str:
    """What is wrong with one entry ("" where nothing is)."""
    name, mode = entry.orig_filename, entry.external_attr >> 16
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(c in name for c in "\\\0:") or "//" in name:
        return "would be unpacked outside its folder"
    if name != entry.filename:
        return "has a second name"
    if "." in name.split("/"):
        return "has a name for which there is a shorter one"
    if not name.isascii() and not entry.flag_bits & UTF8_FLAG:
        return "has a name that each tool reads otherwise"
    if not name.isprintable():
        return "has a name that cannot be printed"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device, not a file"
    if entry.flag_bits & ENCRYPTED_FLAG:
        return "is encrypted"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in a way that the servers do not read"
    if entry.compress_type == zipfile.ZIP_STORED and (
        entry.compress_size != entry.file_size or entry.flag_bits & DESCRIPTOR_FLAG
    ):
        return "is stored without a size of its own"
    if entry.file_size > SMALL_BYTES and entry.file_size > MAX_RATIO * max(1, entry.compress_size):
        return f"would grow {entry.file_size // max(1, entry.compress_size)} times when unpacked"
    return ""


def _check_layout(path: Path, source: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> None:
    """Check that the entries follow one another from byte 0 to the directory, without anything between them."""
    assert source.fp is not None
    end, follows = 0, {b""}
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if _between(source.fp, end, entry.header_offset) not in follows:
            raise SlotwiseError(f"{path.name}: something unlisted lies before {entry.filename[:100]!r}", ADVICE)
        if not _as_listed(source.fp, entry):
            raise SlotwiseError(f"{path.name}: {entry.filename[:100]!r} is not as its directory says", ADVICE)
        end = source.fp.tell() + entry.compress_size
        if entry.compress_type == zipfile.ZIP_DEFLATED and not _inflates(source.fp, entry):
            raise SlotwiseError(f"{path.name}: {entry.filename[:100]!r} does not fill its place", ADVICE)
        follows = _descriptors(entry) if entry.flag_bits & DESCRIPTOR_FLAG else {b""}
    if _between(source.fp, end, source.start_dir) not in follows:
        raise SlotwiseError(f"{path.name}: something unlisted lies behind its last file", ADVICE)


def _between(file: IO[bytes], start: int, end: int) -> bytes | None:
    if not start <= end <= start + DESCRIPTOR_BYTES:
        return None
    file.seek(start)
    return file.read(end - start)


def _as_listed(file: IO[bytes], entry: zipfile.ZipInfo) -> bool:
    """Whether the entry's own header, which Java believes, says what the directory says.

    Afterwards `file` is where the entry's data begin.
    """
    file.seek(entry.header_offset)
    flags, method, packed, unpacked, name_bytes, extra_bytes = HEADER.unpack(file.read(HEADER.size))
    name = file.read(name_bytes).decode("utf-8" if entry.flag_bits & UTF8_FLAG else "cp437", "replace")
    extra = file.read(extra_bytes)
    stated = [(packed, unpacked)]
    while len(extra) >= 4:
        tag, size = struct.unpack("<HH", extra[:4])
        if tag == ZIP64_TAG:
            stated.append(struct.unpack("<QQ", extra[4:20])[::-1])
        extra = extra[4 + size :]
    sizes = {(entry.compress_size, entry.file_size), (0xFFFFFFFF, 0xFFFFFFFF)}
    sizes |= {(0, 0)} if flags & DESCRIPTOR_FLAG else set()
    agreed = DESCRIPTOR_FLAG | ENCRYPTED_FLAG | UTF8_FLAG
    same = method == entry.compress_type and not (flags ^ entry.flag_bits) & agreed
    return same and name == entry.orig_filename and sizes.issuperset(stated)


def _inflates(file: IO[bytes], entry: zipfile.ZipInfo) -> bool:
    """Whether the deflate stream ends where the directory says, and gives as many bytes. Java reads on until it ends."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    packed = entry.compress_size
    unpacked = 0
    while block := file.read(min(packed, BLOCK_BYTES)):
        packed -= len(block)
        unpacked += len(stream.decompress(block))
        if unpacked > entry.file_size or stream.unused_data:
            return False
    return stream.eof and unpacked == entry.file_size


def _descriptors(entry: zipfile.ZipInfo) -> set[bytes]:
    """The bytes that may follow an entry whose sizes were not known when its header was written."""
    sizes = entry.compress_size, entry.file_size
    plain = {struct.pack("<LLL", entry.CRC, *(size & 0xFFFFFFFF for size in sizes)), struct.pack("<LQQ", entry.CRC, *sizes)}
    return plain | {b"PK\x07\x08" + one for one in plain}
