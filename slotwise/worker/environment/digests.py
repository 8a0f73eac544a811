"""Verify, once for each extraction, that the archive holds what was built (MAR-INF/DIGESTS.json).

The first worker reads every file and leaves a marker, so that the others need not read the weights again. The folder belongs to
the server, and the marker lies in it, where an archive can ship one, too. So it says what no archive can know: the inodes and
times that the files got when they were extracted, and which boot of the machine that was. A marker that came with the archive,
or from before a file was changed, counts for nothing. On a read-only file system every worker verifies for itself.

A stranger's handler may rewrite files of its own archive when it starts: then its worker leaves another marker, and the next
one takes them as they are, but for code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from slotwise.worker.environment.bytecode import cached, runs_other_code

logger = logging.getLogger(__name__)

DIGESTS = Path("MAR-INF", "DIGESTS.json")
MARKER = Path("MAR-INF", ".verified")  # written by the first worker that verified
BOOT = Path("/proc/sys/kernel/random/boot_id")  # drawn anew when the machine starts
CODE = {".py", ".pyc", ".so", ".pth"}


class DigestError(ValueError):
    """The extracted archive is not what was built. A ValueError, because TorchServe logs no message of a RuntimeError."""


def verify(model_dir: Path, *, others: bool = False) -> str:
    """Compare every file with its SHA-256, unless an earlier worker of the same extraction has done so.

    others: code that nobody listed may be there (TorchServe installs an archive's requirements beside it).

    A folder without slotwise.json and without digests passes: a handler under development, or an archive of another tool.
    Raises DigestError for a file that was changed or is missing, and for what Python would run although the digests do not
    list it: modules, and bytecode that stands in for a module and says something else. Returns what `take_over` wants.
    """
    if (model_dir / "slotwise").is_dir() and not Path(__file__).resolve().is_relative_to(model_dir.resolve()):
        logger.warning("this worker runs %s, not the archive's own code: unset PYTHONPATH", Path(__file__).parent)
    listing = model_dir / DIGESTS
    if not listing.is_file():
        if (model_dir / "slotwise.json").is_file():
            raise DigestError(f"the archive lacks {DIGESTS}: it was changed after it was built")
        return ""
    raw = listing.read_bytes()
    listed: dict[str, str] = json.loads(raw)["files"]
    caches = _caches(model_dir, listed)
    fixed = [name for name in listed if model_dir / name not in caches]  # Python writes a cache anew when it is stale
    stamp = _stamp(model_dir, raw, fixed, others)  # before anything is read: what changes meanwhile changes it, too
    if stamp and _text(model_dir / MARKER) == stamp:
        return stamp
    _compare(model_dir, listed, caches)
    if not others:
        _refuse_unlisted(model_dir, listed)
    _mark(model_dir / MARKER, stamp)
    return stamp


def take_over(model_dir: Path, verified: str, *, others: bool = False) -> None:
    """The archive's own handler has started: what it has rewritten meanwhile, but for code, the next worker takes as it is.

    verified, others: what `verify` returned and was told.
    """
    if not verified:
        return
    raw = (model_dir / DIGESTS).read_bytes()
    listed: dict[str, str] = json.loads(raw)["files"]
    caches = _caches(model_dir, listed)
    stamp = _stamp(model_dir, raw, [name for name in listed if model_dir / name not in caches], others)
    if stamp in ("", verified):
        return
    try:
        _compare(model_dir, {name: digest for name, digest in listed.items() if Path(name).suffix in CODE}, caches)
    except DigestError as error:
        logger.warning("the next worker will not start: %s", error)
        return
    logger.info("the handler has rewritten files of its archive: the next worker takes them as they are")
    _mark(model_dir / MARKER, stamp)


def _caches(model_dir: Path, listed: Collection[str]) -> dict[Path, str]:
    """Where bytecode of the archive's modules lies within it, and of which."""
    sources = {cached(model_dir / name): name for name in listed if name.endswith(".py")}
    return {cache: name for cache, name in sources.items() if cache.is_relative_to(model_dir)}  # others came with no archive


def content(model_dir: Path) -> str:
    """The digest of the list of digests, which stands for all that the archive holds; "" where there is none."""
    return file_sha256(model_dir / DIGESTS) if (model_dir / DIGESTS).is_file() else ""


def _compare(model_dir: Path, listed: Mapping[str, str], caches: Mapping[Path, str]) -> None:
    """Raise DigestError for a listed file that is not what was built, and for bytecode that is not its module's."""
    for name, digest in listed.items():
        file = model_dir / name
        if not file.is_file():
            raise DigestError(f"{name} is missing from the extracted archive{_since(model_dir)}")
        if file not in caches and file_sha256(file) != digest:
            raise DigestError(f"{name} is not the file that was built{_since(model_dir)}")
    for cache, source in caches.items():
        name = cache.relative_to(model_dir).as_posix()
        if name in listed and file_sha256(cache) == listed[name]:
            continue
        if runs_other_code(model_dir / source):
            raise DigestError(f"{name} would run in place of {source}, and is not what that compiles to")


def _since(model_dir: Path) -> str:
    """What is said of a file where a worker has verified the archive before."""
    if not _text(model_dir / MARKER):
        return ""
    return ": it was changed when a worker had verified it; a handler that writes must write elsewhere than into its archive"


def _refuse_unlisted(model_dir: Path, listed: Collection[str]) -> None:
    """Raise DigestError for code that the digests do not list. A library may leave other files in its working directory."""
    for file in model_dir.rglob("*"):
        name = file.relative_to(model_dir).as_posix()
        cache = file.suffix == ".pyc" and file.parent.name == "__pycache__"  # never imported without its module
        if file.suffix in CODE and not cache and name not in listed:
            raise DigestError(f"{name} is code that the archive's digests do not list")


def _stamp(model_dir: Path, raw: bytes, names: Collection[str], others: bool) -> str:
    """What these files are in this extraction; it changes with each of them. "" where they cannot be looked at."""
    digest = hashlib.sha256(raw)
    digest.update(f"{_text(BOOT)} {others}".encode())
    try:
        for name in names:
            digest.update(_about(model_dir / name))
    except OSError:
        return ""
    return digest.hexdigest()


def _about(file: Path) -> bytes:
    try:
        status = file.stat()
    except FileNotFoundError:
        return b"gone\n"
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode()


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("ascii", "replace")
    return ""


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, as `slotwise register --sha256` wants it."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _mark(marker: Path, stamp: str) -> None:
    """Write the marker at once or not at all, because workers start side by side. The folder may be read-only."""
    partial = marker.with_name(f"{marker.name}.{os.getpid()}")
    try:
        partial.write_text(stamp, "ascii")
        partial.rename(marker)
    except OSError:
        logger.info("the digests will be verified again by the next worker: %s cannot be written", marker)
