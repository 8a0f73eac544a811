"""Load and unload models of a running server as somebody else says: under their name, from their folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.inspection import inspect
from slotwise.backends.interface import NoMemory
from slotwise.backends.remote.server_view import ModelLoader
from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import registration
from slotwise.deploy.scaling import least_bytes
from slotwise.errors import SlotwiseError
from slotwise.profiles import memory

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

OF_MEMORY = re.compile(r"MemoryError|out of memory|cannot allocate memory", re.IGNORECASE)


def loader(folder: Path) -> ModelLoader:
    """Load only what lies below this folder."""
    return ModelLoader(lambda record, name, url: _load(record, name, find(folder, url)), _unload)


def find(folder: Path, url: str) -> Path:
    """The archive that is meant: the path's own, or the only one of the folder. Raises SlotwiseError."""
    path = Path(url)
    archives = [path] if path.suffix == ".mar" else sorted(path.glob("*.mar"))
    if not all(candidate.resolve().is_relative_to(folder.resolve()) for candidate in (path, *archives)):
        raise SlotwiseError(f"{url} is not below the folder of the models", "--multi-model names another folder")
    archives = [candidate for candidate in archives if candidate.is_file()]
    if len(archives) != 1:
        raise SlotwiseError(f"{url} holds {len(archives)} archives (.mar)", "a model is one archive")
    return archives[0]


def _load(record: ServerRecord, name: str, archive: Path) -> None:
    """Register an archive under this name and wait until its workers are READY; else nothing of it stays."""
    record.need_model_api(f"loading {name}")
    info = inspect(archive, need_digests=False)
    settings = registration(info, record.effective_profile(), record.overrides, record.kind)
    _check_memory(name, info, settings)
    stored = _stored(record, name)
    try:
        shutil.copyfile(archive, stored)
        with ManagementClient(record) as client:
            client.register(stored.name, name=name, **settings)
            try:
                client.wait_ready(name, settings["initial_workers"])
            except BaseException:
                with suppress(SlotwiseError):
                    client.unregister(name)
                raise
    except BaseException as error:
        stored.unlink(missing_ok=True)
        if isinstance(error, SlotwiseError) and OF_MEMORY.search(error.message):
            raise NoMemory(error.message, error.hint) from error
        raise


def _unload(record: ServerRecord, name: str) -> None:
    with ManagementClient(record) as client:
        client.unregister(name)
    _stored(record, name).unlink(missing_ok=True)


def _stored(record: ServerRecord, name: str) -> Path:
    """Its place in the model store: the server may load from nowhere else."""
    return record.model_store / f"on-demand-{name}.mar"


def _check_memory(name: str, info: ArchiveInfo, settings: Mapping[str, Any]) -> None:
    """Raise NoMemory where its workers do not fit."""
    needed, free = settings["initial_workers"] * least_bytes(info), memory.free_bytes()
    if needed > free:
        raise NoMemory(f"{name} wants {needed >> 20} MiB of {free >> 20} MiB that are free", "unload another model")
