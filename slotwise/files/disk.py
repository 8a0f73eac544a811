"""Try to write before the work is done, and say which file system is full.

What takes long calls `check_writable` for everything that it will write, before it starts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from slotwise.errors import SlotwiseError
from slotwise.interrupts import held

FULL_BYTES = 1 << 20  # a file system with less room than this is full
FULL = (errno.ENOSPC, errno.EDQUOT)


def check_writable(folder: Path, needed_mib: int = 1) -> None:
    """Write a file into `folder`, or where it will be made, and take it away; see that there is room for `needed_mib`.

    Raises SlotwiseError that names the folder, and the file system that is full. Nothing is left behind.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists() or path.is_symlink())
    try:
        with held(), tempfile.NamedTemporaryFile(prefix=".slotwise-", dir=place) as file:
            file.write(bytes(4096))
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        if error.errno in FULL:
            raise no_space(folder) from error
        raise SlotwiseError(
            f"{folder} cannot be written: {error.strerror}", "name another folder, or make it writable"
        ) from error
    if free < needed_mib << 20:
        raise SlotwiseError(
            f"{folder} wants {needed_mib} MiB, and {file_system(place)} has {free >> 20} MiB left", "make room there"
        )


def write_together(texts: Mapping[Path, str]) -> None:
    """Write every file or none: each text stands beside its file before the first file is replaced. A link stays one."""
    texts = {file.resolve(): text for file, text in texts.items()}
    partial = {file: _beside(file) for file in texts}
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial[file].write_text(text, "utf-8")
            if file.exists():
                shutil.copymode(file, partial[file])
        with held():
            for file in texts:
                partial[file].replace(file)
    finally:
        for beside in partial.values():
            beside.unlink(missing_ok=True)


@contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """A new file beside `file`, to be written within the block; at its end it takes the place of `file`, or it is gone.

    Raises SlotwiseError where `file` is there and is no regular file: a folder, a pipe, a device.
    """
    check_regular(file)
    partial = _beside(file)
    try:
        yield partial
        partial.replace(file)
    except OSError as error:
        error.filename = error.filename or str(file)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[None]:
    """The new folder `folder`, which is written within the block: it is there as a whole, or gone. Raises SlotwiseError."""
    try:
        yield
    except BaseException as error:
        with held():
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            message = f"{folder} cannot be written, and was removed: {error}"
            raise SlotwiseError(message, "see to that, and try again") from error
        raise


def _beside(file: Path) -> Path:
    """A name beside `file` that nobody else has: threads have one process id, and so have containers that share a folder."""
    return file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner can read, unless it was open to more: as a whole, and on the disk at the end.

    To be called within `locked`: what is half written there is nobody's any more, and is taken away.
    """
    file = file.resolve()  # what a link names is replaced, not the link
    check_regular(file)
    for partial in _partials(file):
        partial.unlink(missing_ok=True)
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    with written_whole(file) as partial, open(partial, "w", encoding="utf-8", opener=_for_the_owner) as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)


def clear_partials(file: Path) -> None:
    """Take away what a killed process, or one whose disk was full, left half written beside `file`."""
    file = file.resolve()
    if _partials(file):
        with suppress(OSError), locked(file):
            for partial in _partials(file):
                partial.unlink(missing_ok=True)


def _partials(file: Path) -> list[Path]:
    return [*file.parent.glob(f".{file.name}.*.partial"), *file.parent.glob(f"{file.name}.partial")]


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Within, no other process that asks for this lock changes `file`. The lock is a file beside it, which stays there."""
    file = file.resolve()
    check_regular(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class OnlyOne:
    """Held by one process at a time, and by those that it forks, until one of them lets go or all have ended."""

    def __init__(self, file: Path, message: str) -> None:
        """Raises SlotwiseError with this message where another process holds it."""
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)  # noqa: SIM115  until `release`
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise SlotwiseError(message, "wait for it, or end it") from None

    def release(self) -> None:
        """Let another process have it."""
        if not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()

    def __enter__(self) -> OnlyOne:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def check_regular(file: Path) -> None:
    """Raise SlotwiseError where `file` is there and is no regular file: a folder, a pipe, a device."""
    if file.exists() and not file.is_file():
        raise SlotwiseError(f"{file} is no regular file", "name another one")


def check_target(file: Path | None) -> None:
    """As `check_writable`, for one file that a command was told to write; None: it was not."""
    if file is None:
        return
    if file.is_dir():
        raise SlotwiseError(f"{file} is a folder", "name a file")
    check_regular(file)
    if not file.parent.is_dir():
        raise SlotwiseError(f"{file} cannot be written: there is no folder {file.parent}", "make it first")
    check_writable(file.parent)


def no_space(path: Path) -> SlotwiseError:
    """The error for a file or folder on a file system that is full."""
    return SlotwiseError(f"{path} cannot be written: no space left on {file_system(path)}", "make room there")


def explain(error: OSError, candidates: Iterable[Path]) -> SlotwiseError:
    """One line for a file that cannot be used. candidates: folders to look at where a full file system has no name."""
    if error.errno not in FULL:
        named = error.filename or error.filename2
        return SlotwiseError(f"{os.fsdecode(named)}: {error.strerror}" if named else str(error))
    if written := error.filename2 or error.filename:  # of a copy the second name is what was written
        return no_space(Path(os.fsdecode(written)))
    present = [folder for folder in candidates if folder.exists()]
    full = next((folder for folder in present if shutil.disk_usage(folder).free < FULL_BYTES), None)
    return no_space(full) if full else SlotwiseError(f"the output cannot be written: {error.strerror}")


def file_system(path: Path) -> str:
    """The file system that holds a path, as `tmpfs at /mnt`."""
    absolute = Path(os.path.realpath(path))
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    place = next((folder for folder in (absolute, *absolute.parents) if folder in mounts), Path("/"))
    return f"{mounts.get(place, 'the file system')} at {place}"
