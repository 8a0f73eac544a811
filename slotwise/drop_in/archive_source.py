"""Find what a registration names, in the model store or at an allowed URL, and make of it an archive that can be served here.

A TorchServe archive may be a .mar, a .tgz or a folder. One of another tool gets a guard. What is made of it stands in a folder
of the server's own, in one that has the name of what it was made of: `a` and `a.mar` of one store are two archives.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import zipfile
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.download import download, is_url
from slotwise.archive.guarding.foreign import LEGACY_MANIFEST, lacks
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.archive.packaging import MANIFEST
from slotwise.backends.management.models import ApiError
from slotwise.drop_in.configuration import Configuration
from slotwise.errors import SlotwiseError
from slotwise.files.tarball import unpack

log = logging.getLogger("slotwise.drop_in")

TARBALLS = (".tgz", ".tar.gz")
SUFFIXES = (".mar", *TARBALLS)


class DeployedArchives:
    """The archives of one deployment. folder: for what is made of them."""

    def __init__(self, configuration: Configuration, folder: Path) -> None:
        self.store, self.folder, self.guards = configuration.model_store, folder, configuration.guards
        self.allowed = [one.strip() for one in configuration.text("allowed_urls").split(",") if one.strip()]
        self._one_at_a_time = threading.Lock()
        self._coming = set[str]()  # the names of what is being downloaded
        self._downloads = set[Path]()
        self._mine = threading.local()  # path: what was downloaded for what this thread was asked last
        folder.mkdir(exist_ok=True)

    def all(self) -> list[str]:
        """What `--models all` loads: every archive in the store that is not hidden, by name."""
        shown = [one for one in self.store.iterdir() if not one.name.startswith(".")]
        return sorted(one.name for one in shown if one.name.endswith(SUFFIXES) or (one / MANIFEST).is_file())

    def served(self, archive: str) -> ArchiveInfo:
        """The archive that a registration names, as it is to be served. Raises ApiError or SlotwiseError."""
        self._mine.path = None
        if _is_url(archive):
            self._mine.path = self._downloaded(archive)
        path = self._mine.path or self._stored(archive)
        with self._one_at_a_time:
            return self._served(path)

    def not_registered(self, used: Collection[str]) -> None:
        """What this thread was asked for last is not served after all: what was downloaded for it goes, unless it is used."""
        path = getattr(self._mine, "path", None)
        if path is not None and path.name not in used:
            self.unused(path.name)

    def unused(self, archive: str) -> None:
        """No model is of this archive any more: it goes where it was downloaded, so that its URL can be registered again."""
        if (path := self.store / archive) in self._downloads:
            self._downloads.discard(path)
            path.unlink(missing_ok=True)

    def _served(self, path: Path) -> ArchiveInfo:
        made = self.folder / path.name
        if path.is_dir() and not any((path / one).is_file() for one in (MANIFEST, LEGACY_MANIFEST)):
            raise SlotwiseError(f"{path.name} has no {MANIFEST}", "it is not a model archive")
        if path.is_dir() or path.name.endswith(TARBALLS):
            made.mkdir(exist_ok=True)
            path = self._packed(path, made)
        try:
            info = inspect(path, need_digests=False)
        except SlotwiseError:
            if path.is_relative_to(made):
                path.unlink()
            raise
        if not lacks(info):
            return info
        made.mkdir(exist_ok=True)
        guarded = made / f"{path.name.removesuffix('.mar')}.mar"
        log.info("%s is another tool's: it %s (docs/guard.md)", path.name, "gets a guard" if self.guards else "runs bare")
        guard(path, guarded.with_suffix(".new.mar"), bare=not self.guards, sequences=True).replace(guarded)
        return inspect(guarded)

    def stored_name(self, info: ArchiveInfo) -> str:
        """What an archive is called in the store that was found there, whatever was made of it."""
        made = info.path.parent
        return made.name if made.parent == self.folder else info.path.name

    def _stored(self, archive: str) -> Path:
        if not archive:
            raise ApiError(404, "ModelNotFoundException", "empty url")
        if ".." in archive:
            raise ApiError(404, "ModelNotFoundException", f"Relative path is not allowed in url: {archive:.200}")
        name = archive.rstrip("/").rpartition("/")[2]  # as there: `store/echo.mar` is echo.mar of the store
        path = self.store / name
        if not name or not path.exists():
            raise ApiError(404, "ModelNotFoundException", f"Model not found at: {archive:.200}")
        return path

    def _downloaded(self, url: str) -> Path:
        """Download it into the store, where a pattern of allowed_urls lets it; where it is there already that is an error."""
        if ".." in url:
            raise ApiError(404, "ModelNotFoundException", f"Relative path is not allowed in url: {url:.200}")
        if not any(_matches(pattern, url) for pattern in self.allowed):
            message = f"Given URL {shown(url)} does not match any allowed URL(s)"
            raise ApiError(404, "ModelNotFoundException", message)
        name = Path(unquote(urlsplit(url).path)).name
        if not name.endswith(SUFFIXES) or name.startswith("."):
            raise ApiError(400, "BadRequestException", f"{shown(url)} names no archive")
        target = self.store / name
        with self._one_at_a_time:
            if name in self._coming or target.exists():
                where = "is being downloaded" if name in self._coming else "is in the model store already"
                raise ApiError(500, "InternalServerException", f"{name} {where}")
            self._coming.add(name)
        try:
            digest = download(url, target)
            self._downloads.add(target)
        finally:
            self._coming.discard(name)
        log.info("downloaded %s from %s: SHA-256 %s", name, shown(url), digest)
        return target

    def _packed(self, source: Path, made: Path) -> Path:
        """A folder or tarball as a .mar, in this folder."""
        name = source.name
        for suffix in TARBALLS:
            name = name.removesuffix(suffix)
        target = made / f"{name}.mar"
        folder, unpacked = source, made / f".{name}"
        if not source.is_dir():
            shutil.rmtree(unpacked, ignore_errors=True)
            unpack(source, unpacked)
            inner = next(unpacked.glob(f"*/{MANIFEST}"), unpacked / MANIFEST)  # the archiver puts a folder around it
            folder = inner.parents[1]
        partial = target.with_suffix(".new")
        with zipfile.ZipFile(partial, "w", strict_timestamps=False) as packed:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
                    packed.write(file, file.relative_to(folder).as_posix())
        partial.replace(target)
        shutil.rmtree(unpacked, ignore_errors=True)
        return target


def _is_url(archive: str) -> bool:
    """Whether this is to be downloaded. Raises ApiError for file:// and the like: nothing comes from there."""
    try:
        return is_url(archive)
    except SlotwiseError as error:
        raise ApiError(404, "ModelNotFoundException", error.message) from error


def _matches(pattern: str, url: str) -> bool:
    try:
        return re.fullmatch(pattern, url) is not None
    except re.error:
        return False


def shown(url: str) -> str:
    """What a registration names, and of a URL nothing that may be secret."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
