"""Make archives that nobody should be sent: each kind of fault is a function of a generator and of an archive's files."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from random import Random

from slotwise.archive.packaging import DIGESTS, MANIFEST
from tests.campaign.hostile_values import changed, mutated, written

Files = dict[str, bytes]
NAMES = (
    *(
        "../evil.py",
        "a/../../evil.py",
        "/etc/evil",
        "..\\evil.py",
        "C:evil.py",
        "a//b.py",
        "./data.txt",
        "a/./b.py",
        "",
        ".",
        "..",
    ),
    *(
        "a\0b.py",
        "data.txt/x.py",
        "data.txt/",
        "DATA.TXT",
        "ſervice.py",
        "é.py",
        "e\u0301.py",
        "\u202eyp.live",
        "．．／evil.py",
    ),
    *(
        "CON",
        "aux.py ",
        "x" * 300,
        "x/" * 200 + "y",
        "x" * 65000,
        "a\x1b[2J.py",
        "~/.bashrc",
        "MAR-INF/.verified",
        "sitecustomize.py",
    ),
    *(
        "_slotwise_guard/__init__.py",
        "slotwise/worker/handler.py",
        "mar-inf/manifest.json",
        "日本.txt",
        "%2e%2e/evil",
        "$HOME/x",
    ),
)
SOURCES = (
    *(
        b"-" * 20_000 + b"1",
        b"(" * 5000,
        b"x = " + b"[" * 300,
        b"\0",
        b"\xff\xfe",
        b"# -*- coding: no-such -*-\n",
        b"\xef\xbb\xbfx = 1",
    ),
    *(
        b"# coding: utf-16\nx",
        b"a." * 20_000 + b"b",
        b"1+" * 30_000 + b"1",
        b"if x:\n" + b"".join(b" " * i + b"if x:\n" for i in range(1, 120)),
    ),
    *(
        b"from ..... import x",
        b"import " + b"a." * 5000 + b"a",
        b"async def handle(data, context): pass",
        b"def handle(d, c): return d\n" * 3,
    ),
    *(b"f'" + b"{" * 200, b"9" * 100_000, b"'" + b"\\x" * 99, b"lambda: (yield)", b"def f(" + b"x," * 3000 + b"): pass"),
)
CONFIGS = (
    *(
        b"a: !!timestamp x",
        b"a: !!bool x",
        b"a: !!int ''",
        b"a: !!float z",
        b"a: 2001-99-99",
        b"&a [*a]",
        b"[" * 5000,
        b"\xff\xfe",
        b"a: !!python/object:os.system x",
    ),
    b"a: &a [x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 8)) for i in range(12)),
    *(
        b"batchSize: 0x10\nmaxBatchDelay: 1e9",
        b"batchSize: [1]",
        b"- x",
        b"? [a]\n: b",
        b"<<: 5",
        b"a: !!binary x",
        b"continuousBatching: {",
        b"",
    ),
)


def digested(files: Files) -> Files:
    """The same files with the right digests, as somebody who knows the format would write them."""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != DIGESTS}
    return {**files, DIGESTS: json.dumps({"algorithm": "sha256", "files": listed}).encode()}


def zipped(entries: list[tuple[zipfile.ZipInfo | str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these entries, as they are."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as target:
        warnings.simplefilter("ignore")
        for name, data in entries:
            target.writestr(name, data)
    return file.getvalue()


def plain(draw: Random, files: Files) -> list[tuple[zipfile.ZipInfo | str, bytes]]:
    """The files as entries, sometimes in another order."""
    entries: list[tuple[zipfile.ZipInfo | str, bytes]] = list(files.items())
    if draw.random() < 0.1:
        draw.shuffle(entries)
    return entries


def special(draw: Random, name: str, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    """An entry that no honest tool writes."""
    entry = zipfile.ZipInfo("x")
    entry.filename = entry.orig_filename = name
    entry.external_attr = (
        draw.choice((stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR, stat.S_IFSOCK, 0)) << 16
    )
    entry.compress_type = draw.choice((0, 0, 8, 8, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    return entry, data


def names(draw: Random, files: Files) -> bytes:
    """Names that escape, repeat, hide or cannot be written, with digests or without."""
    name = draw.choice((*NAMES, *files)) or "."  # Python can write no empty name
    data = draw.choice((b"", b"evil", b"/etc/passwd"))
    files = digested({**files, name: data}) if draw.random() < 0.5 and DIGESTS in files else files
    return zipped([*plain(draw, files), special(draw, name, data)])


def bombs(draw: Random, files: Files) -> bytes:
    """What grows when it is unpacked."""
    kind = draw.randrange(4)
    if kind == 0:
        data = bytes(draw.choice((1 << 10, 1 << 20, 3 << 20)))
        return zipped([*plain(draw, files), (draw.choice((MANIFEST, DIGESTS, "bomb")), data)], zipfile.ZIP_DEFLATED)
    if kind == 1:
        return zipped([*plain(draw, files), *((f"f{i}", b"") for i in range(draw.choice((100, 10_001))))])
    whole = bytearray(zipped(plain(draw, files), zipfile.ZIP_DEFLATED))
    at = whole.find(b"PK\x01\x02")
    if kind == 2:  # a size that lies, in the directory
        struct.pack_into(
            "<L", whole, at + draw.choice((20, 24)), draw.choice((0, 1, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF))
        )
    else:  # two entries of the directory that share their data
        other = whole.find(b"PK\x01\x02", at + 4)
        if other > 0:
            whole[other + 42 : other + 46] = whole[at + 42 : at + 46]
    return bytes(whole)


def headers(draw: Random, files: Files) -> bytes:
    """Headers before the data that are not as the directory says: Java believes the one, Python the other."""
    method = draw.choice((0, 8))
    whole = bytearray(zipped(plain(draw, files), method))
    starts = [at for at in range(len(whole) - 4) if whole[at : at + 4] == draw.choice((b"PK\x03\x04", b"PK\x01\x02"))]
    if starts:
        at = draw.choice(starts)
        field = draw.choice((4, 6, 7, 8, 14, 18, 22, 26, 28, 30))
        whole[at + field] = draw.choice((0, 1, 8, 9, 0x80, 0xFF, whole[at + field] ^ 8, draw.randrange(256)))
    return bytes(whole)


def hidden(draw: Random, files: Files) -> bytes:
    """Something before, between or behind that the directory does not list."""
    evil = zipped([("evil.py", b"evil")])[: 30 + len("evil.py") + 4]
    whole = zipped(plain(draw, files), draw.choice((0, 8)))
    directory = whole.find(b"PK\x01\x02")
    at = draw.choice((0, directory, len(whole), draw.randrange(len(whole))))
    stuff = draw.choice((evil, evil * 2, b"#!/bin/sh\n", whole, bytes(70_000), zlib.compress(evil)))
    moved = bytearray(whole[:at] + stuff + whole[at:])
    if at <= directory and draw.random() < 0.7:  # the directory's place and the offsets in it follow
        end = moved.rfind(b"PK\x05\x06")
        struct.pack_into("<L", moved, end + 16, directory + len(stuff))
        entry = directory + len(stuff)
        while moved[entry : entry + 4] == b"PK\x01\x02":
            (offset,) = struct.unpack_from("<L", moved, entry + 42)
            struct.pack_into("<L", moved, entry + 42, offset + (len(stuff) if offset >= at else 0))
            entry += 46 + sum(struct.unpack_from("<HHH", moved, entry + 28))
    return bytes(moved)


def contents(draw: Random, files: Files) -> bytes:
    """Files that say nonsense, with digests that are right."""
    files = dict(files)
    kind = draw.randrange(5)
    if kind < 3:
        name = draw.choice([one for one in (MANIFEST, "slotwise.json", DIGESTS, "MANIFEST.json") if one in files])
        content = json.loads(files[name])
        for _ in range(draw.choice((1, 1, 2, 4))):
            content = changed(draw, content)
        files[name] = written(content)
        if name == DIGESTS:
            return zipped(plain(draw, files))
    elif kind == 3:
        files["handler.py"] = draw.choice(SOURCES)
    else:
        files["model-config.yaml"] = draw.choice(CONFIGS)
    return zipped(plain(draw, digested(files) if DIGESTS in files else files), draw.choice((0, 8)))


def renamed(draw: Random, files: Files) -> bytes:
    """Another model name in the manifest, with digests that are right."""
    manifest = json.loads(files.get(MANIFEST, b'{"model": {"handler": "handler.py"}}'))
    manifest["model"]["modelName"] = draw.choice((*NAMES, "a b", "x?y=z", "a#b", "-x", "--help", "a%00b", "..%2f"))
    files = {**files, MANIFEST: json.dumps(manifest).encode()}
    return zipped(plain(draw, digested(files) if DIGESTS in files else files))


def damaged(draw: Random, files: Files) -> bytes:
    """Bytes flipped, cut, repeated, inserted or removed."""
    return mutated(draw, zipped(plain(draw, files), draw.choice((0, 8))))


FAULTS: tuple[Callable[[Random, Files], bytes], ...] = (
    damaged,
    damaged,
    names,
    bombs,
    headers,
    hidden,
    contents,
    contents,
    renamed,
)
