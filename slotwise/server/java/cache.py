"""The cache of what Java has loaded and learned (its AOT cache): with it a server's Java starts in a fraction of the time.

There is one file for each server and Java, in a folder below the user's ~/.cache that nobody else can read or write. Java
runs what is in it, so a folder or file that somebody else could have written is not used. It is made by
`slotwise.deploy.java_training`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import stat
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from slotwise.server.java.start_java import MODULES

SWITCH = "SLOTWISE_JAVA_CACHE"  # "0": neither made nor used
JAVA_SINCE = 25  # earlier ones cannot make it while a server runs, or do not know the option
KNOWN = {"torchserve": ("torchserve", "0.12.0"), "mms": ("multi-model-server", "1.1.11")}  # java_start was written for these
UNUSED_S = 30 * 24 * 3600.0
RETRY_S = 3600.0  # after a failure, as on a machine too busy to start a server in time


def known(kind: str) -> bool:
    """Whether this server's start module is one that java_start was written for."""
    package, expected = KNOWN[kind]
    try:
        return version(package) == expected
    except PackageNotFoundError:
        return False


def cache_file(kind: str, home: Path) -> Path | None:
    """Where the cache for this server and the Java in `home` is or will be; None where there can be none.

    Its name changes with the server's files and the Java, so that a cache is never used for others.
    """
    if os.environ.get(SWITCH) == "0" or kind not in MODULES or not known(kind):
        return None
    try:
        release = (home / "release").read_text("utf-8")
        spec = importlib.util.find_spec(MODULES[kind].split(".")[0])
        if _major(release) < JAVA_SINCE or spec is None or spec.origin is None:
            return None
        jars = sorted((Path(spec.origin).parent / "frontend").glob("*.jar"))
        facts = [kind, release, [_state(path) for path in (home / "bin" / "java", home / "lib" / "modules", *jars)]]
        return private_folder() / f"{kind}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.aot"
    except (OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: a user without a home
        return None


def options(kind: str, home: Path) -> list[str]:
    """Java's options that use the cache; none where there is no cache that fits."""
    file = cache_file(kind, home)
    if file is None or not _own(file):
        return []
    with contextlib.suppress(OSError):
        os.utime(file)  # see delete_unused
    return [f"-XX:AOTCache={file}", "-Xlog:aot=off", "-Xlog:cds=off"]


def delete_unused() -> None:
    """Delete the caches of servers and Javas that no server was started with for a month: of earlier versions, mostly."""
    for file in private_folder().glob("*.*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > UNUSED_S:
                file.unlink()


def forget_after_crash(kind: str, home: Path, state: Path) -> None:
    """Delete the cache where Java has crashed, which leaves a report in the server's folder: the next start is without it."""
    file = cache_file(kind, home)
    if file is not None and file.exists() and any(state.glob("hs_err_pid*.log")):
        file.unlink(missing_ok=True)
        remember_failure(file)


def remember_failure(file: Path) -> None:
    """Note that this cache could not be made: `wanted` does not give it for an hour."""
    _failure(file).touch(mode=0o600)


def wanted(kind: str, home: Path) -> Path | None:
    """The cache file that should be made: it is not there, and making it has not failed within the hour."""
    file = cache_file(kind, home)
    if file is None or _own(file):
        return None
    try:
        return None if time.time() - _failure(file).stat().st_mtime < RETRY_S else file
    except OSError:
        return file


def private_folder() -> Path:
    """The caches' folder. Raises OSError where it is not ours alone."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "slotwise" / "java"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    about_folder = folder.lstat()
    if not stat.S_ISDIR(about_folder.st_mode) or about_folder.st_uid != os.geteuid() or about_folder.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _own(file: Path) -> bool:
    try:
        about_file = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(about_file.st_mode) and about_file.st_uid == os.geteuid() and not about_file.st_mode & 0o022


def _failure(file: Path) -> Path:
    return file.with_suffix(".failed")


def _major(release: str) -> int:
    matched = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(matched[1]) if matched else 0


def _state(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return os.path.realpath(path), stat.st_size, stat.st_mtime_ns
