"""Inspect and unpack .mar archives. Every file in one has its SHA-256 in MAR-INF/DIGESTS.json.

No archive is trusted before it has been checked. Nothing is written before its directory has been found sound. And nothing may
be in the file that its directory does not list: the servers' Java reads it front to back, and would unpack that as well.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotwise.archive.archive_info import ArchivedFile, ArchiveInfo
from slotwise.archive.guarding.foreign import LEGACY_MANIFEST, TERMS, config_of, is_small, migrated
from slotwise.archive.packaging import DIGESTS, MANIFEST
from slotwise.archive.zip_safety import DAMAGE, check_entries, read_small
from slotwise.errors import SlotwiseError
from slotwise.files.disk import FULL
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.separability.proof import carried

BLOCK_BYTES = 1 << 20
MANIFEST_BYTES = 16 << 20  # of ours the largest: a digest for each of ten thousand files
REBUILD = "it was changed after it was built: do not serve it; build it again or get a fresh copy"


def inspect(path: Path, *, need_digests: bool = True) -> ArchiveInfo:
    """Read a whole archive and compare every byte with its digests; SlotwiseError says what is wrong with it.

    need_digests: False accepts an archive of another tool, which carries no digests. Ours always need them.
    """
    with opened(path) as source:
        manifest = manifest_of(path, source)
        entries = [ArchivedFile(item.filename, item.file_size, _entry_sha256(source, item)) for item in source.infolist()]
        names = set(source.namelist())
        if need_digests or {DIGESTS, "slotwise.json", TERMS} & names:
            _compare(path, entries, _digests(path, source))
        settings = _settings(path, source) if "slotwise.json" in names else {}
        release, _ = _release(path, source)
        model, profiles = settings.get("model", {}), settings.get("profiles", {})
        size, files = path.stat().st_size, sorted(entries, key=lambda entry: entry.name)
        config = config_of(source, manifest)
        inputs = settings.get("inputs", {})
        rows = carried(settings)
        return ArchiveInfo(path, size, file_sha256(path), manifest, model, profiles, files, inputs, config, release, rows)


def release_of(path: Path) -> tuple[str, bool]:
    """The release of slotwise whose worker an archive carries, "" where it carries none; and whether that is a guard."""
    with opened(path) as source:
        return _release(path, source)


def verify(path: Path) -> None:
    """Raise SlotwiseError unless the archive is exactly what was built."""
    inspect(path)


def extract(path: Path, out_dir: Path, *, trusted: bool = False, names: Collection[str] | None = None) -> Path:
    """Unpack into the new folder `out_dir`, as a server does; returns it.

    trusted: skip the digests, not the safety. names: only these files.
    """
    if not trusted:
        verify(path)
    with opened(path) as source:
        try:
            out_dir.mkdir(parents=True)
            source.extractall(out_dir, names)
        except OSError as error:
            hint = "name a new folder where there is room"
            raise SlotwiseError(f"{path.name} cannot be unpacked to {out_dir}: {error.strerror or error}", hint) from error
    return out_dir


def unpacked(info: ArchiveInfo, out_dir: Path) -> Path:
    """Unpack what was inspected into the new folder `out_dir`, and returns it.

    Raises SlotwiseError, and leaves nothing, where another archive has taken its place since.
    """
    extract(info.path, out_dir, trusted=True)  # the digests were compared when it was inspected
    listed = {entry.name: entry.sha256 for entry in info.entries if not entry.name.endswith("/")}
    found = {file.relative_to(out_dir).as_posix(): file_sha256(file) for file in out_dir.rglob("*") if file.is_file()}
    if found != listed:
        shutil.rmtree(out_dir)
        raise replaced(info)
    return out_dir


def replaced(info: ArchiveInfo) -> SlotwiseError:
    """What is said where another archive stands in the place of the one that was inspected."""
    return SlotwiseError(f"{info.path.name} has changed since it was looked at", "register it again")


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive and check its directory. Whatever is damaged in the file becomes one SlotwiseError."""
    if not path.is_file():
        raise SlotwiseError(f"there is no archive {path}", "`slotwise build MODEL` makes one in model_store/")
    try:
        with zipfile.ZipFile(path) as source:
            check_entries(path, source)
            yield source
    except DAMAGE as error:
        named = getattr(error, "filename", None)
        if getattr(error, "errno", None) in FULL or (named and str(named) != str(path)):  # of what was written meanwhile
            raise
        raise SlotwiseError(
            f"{path.name} is truncated or damaged: {shown(str(error))}", "get a fresh copy or build it again"
        ) from error


def _json(path: Path, source: zipfile.ZipFile, name: str) -> dict[str, Any]:
    try:
        data = json.loads(read_small(source, name, MANIFEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise SlotwiseError(f"{path.name}: {name} is not JSON", REBUILD) from error
    if not isinstance(data, dict):
        raise SlotwiseError(f"{path.name}: {name} is not a JSON object", REBUILD)
    if not is_small(data, MANIFEST_BYTES):
        raise SlotwiseError(f"{path.name}: {name} is nested too deeply", REBUILD)
    return data


def _settings(path: Path, source: zipfile.ZipFile) -> dict[str, Any]:
    """The slotwise.json of an archive. Raises SlotwiseError where a part that is read later is not what it should be."""
    settings = _json(path, source, "slotwise.json")
    model, profiles, inputs = (settings.get(key, {}) for key in ("model", "profiles", "inputs"))
    own, options = (model.get(key, {}) if isinstance(model, dict) else {} for key in ("profiles", "options"))
    inside = [*(profiles.values() if isinstance(profiles, dict) else []), *(own.values() if isinstance(own, dict) else [])]
    if isinstance(options, dict):
        inside.append(options.get("onnx", {}))
    described = all(isinstance(section, dict) for section in (model, profiles, inputs, own, options, *inside))
    if not described or not "".join(profiles).isprintable() or not isinstance(settings.get("worker", 1), int):
        raise SlotwiseError(f"{path.name}: slotwise.json does not describe a model", REBUILD)
    return settings


def _release(path: Path, source: zipfile.ZipFile) -> tuple[str, bool]:
    names = source.namelist()
    about = next((name for name in (TERMS, "slotwise.json") if name in names), None)
    return shown(str(_json(path, source, about).get("slotwise", ""))) if about else "", about == TERMS


def manifest_of(path: Path, source: zipfile.ZipFile) -> dict[str, Any]:
    """What the archive says of itself; that of an archive for MMS before 1.0 as MMS migrates it."""
    names = source.namelist()
    if MANIFEST in names:
        manifest = _json(path, source, MANIFEST)
    elif LEGACY_MANIFEST in names:
        try:
            manifest = migrated(_json(path, source, LEGACY_MANIFEST))
        except (KeyError, TypeError):
            manifest = {}
    else:
        raise SlotwiseError(f"{path.name} has no {MANIFEST}", "it is not a model archive")
    if "workflow" in manifest:
        raise SlotwiseError(f"{path.name} is a workflow archive", "it holds no model: name the archives of its models")
    model = manifest.get("model")
    named = [model.get(key) for key in ("modelName", "handler")] if isinstance(model, dict) else [None]
    if not all(isinstance(name, str) and name and name.isprintable() for name in named):
        raise SlotwiseError(f"{path.name}: the manifest names no model and handler", "it is not a model archive")
    if not f"{manifest['model'].get('modelVersion')}{manifest.get('archiverVersion')}".isprintable():
        raise SlotwiseError(f"{path.name}: the manifest's versions cannot be printed", "it is not a model archive")
    return manifest


def _digests(path: Path, source: zipfile.ZipFile) -> dict[str, str]:
    if DIGESTS not in source.namelist():
        raise SlotwiseError(f"{path.name} carries no {DIGESTS}", "it was not built by `slotwise build`, or it was changed")
    listed = _json(path, source, DIGESTS)
    files = listed.get("files")
    if listed.get("algorithm") != "sha256" or not isinstance(files, dict):
        raise SlotwiseError(f"{path.name}: {DIGESTS} is not a list of SHA-256 digests", REBUILD)
    return files


def shown(text: str) -> str:
    """Text of an archive as it may stand in a line of ours: printable, and not too long."""
    return text if text.isprintable() and len(text) <= 200 else f"{text[:200]!a}..."


def _compare(path: Path, entries: list[ArchivedFile], digests: dict[str, str]) -> None:
    for entry in entries:
        listed = entry.sha256 if entry.name == DIGESTS else digests.get(entry.name)
        if listed is None:
            raise SlotwiseError(f"{path.name} carries {shown(entry.name)}, which its digests do not list", REBUILD)
        if listed != entry.sha256:
            raise SlotwiseError(f"{path.name}: {shown(entry.name)} is not the file that was built", REBUILD)
    missing = sorted(set(digests) - {entry.name for entry in entries})
    if missing:
        raise SlotwiseError(f"{path.name} lacks {shown(missing[0])}, which its digests list", REBUILD)


def _entry_sha256(source: zipfile.ZipFile, item: zipfile.ZipInfo) -> str:
    digest = hashlib.sha256()
    with source.open(item) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
